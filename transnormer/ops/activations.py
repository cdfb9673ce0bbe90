"""The activations of feed-forward layers by name."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from transnormer.errors import ConfigError, did_you_mean

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "relu": F.relu, "gelu": F.gelu}


def check_activation(op: str, name: str) -> None:
    """An error of `op` for an unknown activation, with a suggestion."""
    if name not in ACTIVATIONS:
        raise ConfigError(f"{op}: unknown activation '{name}'", did_you_mean(name, ACTIVATIONS))
