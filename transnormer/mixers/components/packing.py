"""Padding anywhere becomes padding on the right: each row's real tokens move to the front, in order, and back again."""

from __future__ import annotations

import torch
from torch import Tensor


class Packing:
    """The row-wise permutation that brings real tokens first, made once per mask [B, T] (1 = real)."""

    def __init__(self, mask: Tensor) -> None:
        self.order = mask.bool().byte().argsort(dim=1, descending=True, stable=True)
        self.inverse = self.order.argsort(dim=1)
        self.mask = mask.bool().gather(1, self.order)

    def pack(self, x: Tensor) -> Tensor:
        """x [B, T, ...] with the real tokens first."""
        return _permute(x, self.order)

    def unpack(self, x: Tensor) -> Tensor:
        """Undo `pack`."""
        return _permute(x, self.inverse)


def _permute(x: Tensor, order: Tensor) -> Tensor:
    return x.gather(1, order.reshape(*order.shape, *[1] * (x.dim() - 2)).expand_as(x))


def append_right_aligned(old: Tensor | None, new: Tensor, counts: Tensor | None) -> Tensor:
    """Append new tokens [B, T, ...] to a right-aligned cache [B, L, ...]: the newest real token stays last.

    Only the first counts[b] tokens of row b are real (None: all are); the others fall off the left end.
    """
    joined = new if old is None else torch.cat([old, new], dim=1)
    if counts is None:
        return joined
    total = joined.shape[1]
    shift = (new.shape[1] - counts)[:, None]
    source = torch.arange(total, device=new.device) - shift
    return _permute(joined, source.clamp(min=0))


def newest(x: Tensor, count: int) -> Tensor:
    """The last `count` tokens of x [B, L, ...], in memory of their own: a view would keep all the others too."""
    return x if x.shape[1] <= count else x[:, -count:].clone()


def right_aligned_positions(length: Tensor, size: int) -> Tensor:
    """Positions in the text [B, size] of a right-aligned cache after `length` [B] tokens; negative: empty slot."""
    return length[:, None] - size + torch.arange(size, device=length.device)
