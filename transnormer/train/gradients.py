"""What is known of a step once its gradients are."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Gradients:
    """Enough to decide whether the update may be made, and for a line of the journal."""

    loss: float
    norm: float
    tokens: int

    @property
    def finite(self) -> bool:
        """Whether the update would leave the weights finite."""
        return math.isfinite(self.loss) and math.isfinite(self.norm)
