"""A token stream cut into consecutive windows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from transnormer.data.store import TokenSplit


@dataclass(frozen=True)
class Windows:
    """Window i is tokens[i * stride : i * stride + stride + lookahead]; only the last one may be shorter.

    A causal language model looks one token ahead (its last target), so its windows share one token and every token
    but the first of the stream is a target once. Without lookahead the windows share nothing.
    """

    split: TokenSplit
    stride: int
    lookahead: int = 0

    @property
    def complete(self) -> int:
        """Number of windows of full length."""
        return max(0, len(self.split) - self.lookahead) // self.stride

    def __len__(self) -> int:
        """Number of windows, the last and shorter one included."""
        return -(-max(0, len(self.split) - self.lookahead) // self.stride)

    def __getitem__(self, index: int) -> np.ndarray:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        start = index * self.stride
        return self.split.read(start, min(start + self.stride + self.lookahead, len(self.split)))
