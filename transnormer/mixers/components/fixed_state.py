"""A decode state that stays where it is: one token changes its numbers, never its shapes or addresses.

That is what a CUDA graph needs to replay a step. A recurrent memory has such a form already; keys and values get slots:
of S slots, the token at position p takes slot p % S.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from transnormer.mixers.components.packing import right_aligned_positions
from transnormer.ops.shapes import accumulation_dtype

if TYPE_CHECKING:
    from transnormer.mixers.contract import State


class FixedState(dict[str, Tensor]):
    """`length` [B], shared by all layers and counted by their owner, and `memory`, or `keys`, `values` [B, S, H, D]."""

    def load(self, state: State) -> None:
        """Take over what the parallel forward left behind.

        Slots of empty places in `state`, or of tokens in an earlier block, take numbers that no later token sees.
        """
        for name in ("memory", "keys", "values"):
            if name == "memory" and name in state:
                self[name].copy_(state[name])
            elif name in state:
                positions = right_aligned_positions(state["length"], state[name].shape[1])
                write_slots(self[name], state[name], positions % self[name].shape[1])

    def forget(self) -> None:
        """Back to before the first token; the shared `length` is left to its owner."""
        for name in self.keys() - {"length"}:
            self[name].zero_()

    @property
    def nbytes(self) -> int:
        """Bytes of what this layer remembers, all rows together."""
        return sum(self[name].nbytes for name in self.keys() - {"length"})


def fixed_memory(length: Tensor, heads: int, size: tuple[int, int], dtype: torch.dtype) -> FixedState:
    """An empty recurrent memory [B, H, *size] for a model that computes in `dtype`."""
    shape = (length.shape[0], heads, *size)
    return FixedState(length=length, memory=torch.zeros(shape, dtype=accumulation_dtype(dtype), device=length.device))


def fixed_slots(length: Tensor, slots: int, heads: int, head_dim: int, dtype: torch.dtype) -> FixedState:
    """Empty slots for keys and values."""
    shape = (length.shape[0], heads, slots, head_dim)

    def empty() -> Tensor:
        # In memory the tokens of a head lie together, as attention reads them.
        return torch.zeros(shape, dtype=dtype, device=length.device).transpose(1, 2)

    return FixedState(length=length, keys=empty(), values=empty())


def write_slots(slots: Tensor, tokens: Tensor, where: Tensor) -> None:
    """Put tokens [B, T, H, D] into the slots `where` [B, T] of [B, S, H, D]."""
    rows = torch.arange(slots.shape[0], device=slots.device)[:, None]
    slots[rows, where] = tokens
