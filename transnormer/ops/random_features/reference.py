"""Random features written from the definition, token by token."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor


def random_features_reference(
    x: Tensor, weight: Tensor, *, scale: float, epsilon: float, scope: str, offset: Tensor | None, mask: Tensor | None
) -> Tensor:
    """exp(Wx̂ + offset - ‖x̂‖²/2 - largest) + ε for x [B, T, H, D], zero for padding."""
    offset = torch.zeros(len(weight), dtype=x.dtype) if offset is None else offset
    mask = torch.ones(x.shape[:2]) if mask is None else mask
    real = [
        (row, t, h) for row in range(x.shape[0]) for t in range(x.shape[1]) if mask[row, t] for h in range(x.shape[2])
    ]
    exponents = {index: weight @ (scale * x[index]) + offset for index in real}
    shared = defaultdict(list)
    for row, t, h in real:
        shared[_scope(scope, row, t, h)].append(exponents[row, t, h])
    largest = {together: torch.stack(some).max() for together, some in shared.items()}
    rows = 0 * x[..., :1].repeat(1, 1, 1, len(weight))
    for row, t, h in real:
        token = scale * x[row, t, h]
        less = 0.0 if scope == "none" else largest[_scope(scope, row, t, h)]
        rows[row, t, h] = torch.exp(exponents[row, t, h] - token @ token / 2 - less) + epsilon
    return rows


def _scope(scope: str, row: int, t: int, head: int) -> tuple[int, ...]:
    """What a token of a head shares its greatest exponent with."""
    return {"none": (), "token": (row, t, head), "sequence": (row, head), "batch": ()}[scope]
