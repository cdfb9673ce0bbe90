"""The Moore-Penrose inverse by matrix products alone (Razavi et al. 2014), as Nyströmformer and Skyformer use it."""

from __future__ import annotations

import torch
from torch import Tensor


def iterative_pseudo_inverse(matrix: Tensor, iterations: int, *, batch_scale: bool = False) -> Tensor:
    """Z ← Z(13I - AZ(15I - AZ(7I - AZ)))/4 for matrices A [..., m, m] ≥ 0 whose spectral radius is at most one.

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
