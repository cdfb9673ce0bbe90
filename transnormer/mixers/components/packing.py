"""Padding anywhere becomes padding on the right: each row's real tokens move to the front, in order, and back again."""

from __future__ import annotations

from torch import Tensor


class Packing:
    """The row-wise permutation that brings real tokens first, made once per mask [B, T] (1 = real)."""

    def __init__(self, mask: Tensor) -> None:
        self.order = mask.bool().byte().argsort(dim=1, descending=True, stable=True)
        self.inverse = self.order.argsort(dim=1)
        self.mask = mask.bool().gather(1, self.order)

    def pack(self, x: Tensor) -> Tensor:
        """x [B, T, ...] with the real tokens first."""
        return take(x, self.order)

    def unpack(self, x: Tensor) -> Tensor:
        """Undo `pack`."""
        return take(x, self.inverse)

    def unpack_pairs(self, weights: Tensor) -> Tensor:
        """Undo `pack` in the rows and the columns of weights [B, H, T, T]."""
        rows = self.unpack(weights.transpose(1, 2))  # [B, T, H, T]
        return self.unpack(rows.movedim(-1, 1)).movedim(1, -1).transpose(1, 2)


def take(x: Tensor, index: Tensor) -> Tensor:
    """The tokens of x [B, T, ...] at index [B, N]: [B, N, ...]."""
    return x.gather(1, index.reshape(*index.shape, *[1] * (x.dim() - 2)).expand(*index.shape, *x.shape[2:]))
