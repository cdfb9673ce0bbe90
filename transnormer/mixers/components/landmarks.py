"""The Nyström approximation of attention: landmarks of a sequence, and the pseudo-inverse of their kernel.

Landmarks are m consecutive segments of each row's real tokens, or their means. Row b with L real tokens has min(m, L)
segments whose sizes differ by at most one; token j lies in segment ⌊j·m/L⌋. So any length works, padding is never part
of a landmark, and where m divides L the segments are those of the papers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from transnormer.mixers.components.packing import take


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


def _like(x: Tensor, other: Tensor) -> Tensor:
    return x.reshape(*x.shape, *[1] * (other.dim() - x.dim()))


def iterative_pseudo_inverse(matrix: Tensor, iterations: int, *, batch_scale: bool = False) -> Tensor:
    """The Moore-Penrose inverse by matrix products alone (Razavi et al. 2014), as Nyströmformer and Skyformer use it.

    Z ← Z(13I - AZ(15I - AZ(7I - AZ)))/4 for matrices A [..., m, m] ≥ 0 whose spectral radius is at most one.

    Starts at Aᵀ over the largest column sum of each matrix; `batch_scale` takes the largest of the whole batch, which
    couples its samples. Rows and columns of A that are zero stay exactly zero in Z.
    """
    largest = matrix.sum(dim=-2).amax(dim=-1)[..., None, None]
    inverse = matrix.mT / (largest.amax() if batch_scale else largest)
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    for _ in range(iterations):
        product = matrix @ inverse
        inverse = inverse @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product))) / 4
    return inverse
