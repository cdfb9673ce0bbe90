"""Landmarks of a sequence: m consecutive segments of each row's real tokens, and their means.

Row b with L real tokens has min(m, L) segments whose sizes differ by at most one; token j lies in segment ⌊j·m/L⌋. So
any length works, padding is never part of a landmark, and where m divides L the segments are those of the papers.
"""

from __future__ import annotations

import torch
from torch import Tensor


def segments(lengths: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """First positions and sizes [B, count] of the segments of rows of `lengths` [B] >= 1 tokens; size 0: no segment."""
    length, index = lengths[:, None], torch.arange(count + 1, device=lengths.device)
    used = length.clamp(max=count)
    edges = (index.clamp(max=used) * length + used - 1) // used
    return edges[:, :-1], edges.diff(dim=1)


def segment_means(x: Tensor, lengths: Tensor, count: int) -> Tensor:
    """The mean of each segment of x [B, T, ...]: [B, count, ...], zero where there is no segment; count <= T."""
    starts, sizes = segments(lengths, count)
    width = -(-x.shape[1] // count)
    slots = starts[:, :, None] + torch.arange(width, device=x.device)
    inside = slots < (starts + sizes)[:, :, None]
    members = take(x, slots.flatten(1).clamp(max=x.shape[1] - 1)).unflatten(1, slots.shape[1:])
    total = members.masked_fill(~_like(inside, members), 0).sum(dim=2)
    return total / _like(sizes.clamp(min=1), total)


def take(x: Tensor, positions: Tensor) -> Tensor:
    """The tokens of x [B, T, ...] at `positions` [B, count]."""
    return x.gather(1, _like(positions, x).expand(*positions.shape, *x.shape[2:]))


def _like(x: Tensor, other: Tensor) -> Tensor:
    return x.reshape(*x.shape, *[1] * (other.dim() - x.dim()))
