"""Random features written from the definition, token by token."""

from __future__ import annotations

import torch
from torch import Tensor


def random_features_reference(
    x: Tensor, weight: Tensor, *, scale: float, epsilon: float, scope: str, offset: Tensor | None, mask: Tensor | None
) -> Tensor:
    """exp(Wx̂ + offset - ‖x̂‖²/2 - largest) + ε for x [B, T, H, D], zero for padding."""
    offset = torch.zeros(len(weight), dtype=x.dtype) if offset is None else offset
    mask = torch.ones(x.shape[:2]) if mask is None else mask
    real = [(row, t) for row in range(x.shape[0]) for t in range(x.shape[1]) if mask[row, t]]
    rows = 0 * x[..., :1].repeat(1, 1, 1, len(weight))
    for row, t in real:
        for head in range(x.shape[2]):
            token = scale * x[row, t, head]
            together = {"none": [], "token": [(row, t)], "text": [at for at in real if at[0] == row], "batch": real}
            heads = range(x.shape[2]) if scope == "batch" else [head]
            exponents = [weight @ (scale * x[r, s, h]) + offset for r, s in together[scope] for h in heads]
            largest = torch.stack(exponents).max() if exponents else 0.0
            rows[row, t, head] = torch.exp(weight @ token + offset - token @ token / 2 - largest) + epsilon
    return rows
