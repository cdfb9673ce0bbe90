"""What a decoding mixer remembers, in two forms.

`State` is the form of transformers' caches: a call returns a new one, so that beams may branch and rows be reordered,
and it may grow. Keys and values are right-aligned: the newest real token of every row is last.

`FixedState` is the form of a CUDA graph: a token changes its numbers in place, never its shapes or addresses. A
recurrent memory has such a form already; keys and values get slots: of S slots, the token at position p takes p % S.
"""

from __future__ import annotations

import torch
from torch import Tensor

from transnormer.mixers.components.packing import take
from transnormer.ops.shapes import accumulation_dtype

# Tensors with the batch first: `length` [B], the number of real tokens seen, and `memory` (recurrent), or `keys` and
# `values` [B, L, H, D], or both. Keys and values may differ in H and D.
State = dict[str, Tensor]


def append_right_aligned(old: Tensor | None, new: Tensor, counts: Tensor | None) -> Tensor:
    """Append new tokens [B, T, ...] to a right-aligned cache [B, L, ...]: the newest real token stays last.

    Only the first counts[b] tokens of row b are real (None: all are); the others fall off the left end.
    """
    appended = new if old is None else torch.cat([old, new], dim=1)
    if counts is None:
        return appended
    total = appended.shape[1]
    shift = (new.shape[1] - counts)[:, None]
    source = torch.arange(total, device=new.device) - shift
    return take(appended, source.clamp(min=0))


def newest(x: Tensor, count: int) -> Tensor:
    """The last `count` tokens of x [B, L, ...], in memory of their own: a view would keep all the others too."""
    return x if x.shape[1] <= count else x[:, -count:].clone()


def right_aligned_positions(length: Tensor, size: int) -> Tensor:
    """Positions in the sequence [B, size] of a right-aligned cache after `length` [B] tokens; negative: empty slot."""
    return length[:, None] - size + torch.arange(size, device=length.device)


class FixedState(dict[str, Tensor]):
    """`length` [B], shared by all layers and counted by their owner, and `memory`, or `keys`, `values` [B, S, H, D]."""

    def load(self, state: State) -> None:
        """Take over what the parallel forward left behind.

        Empty slots of `state`, and tokens of an earlier block, leave numbers that no later token sees.
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
