"""The rotation of queries and keys written with complex numbers: a pair of features is one number."""

from __future__ import annotations

import torch
from torch import Tensor

from transnormer.ops.feature_maps import feature_map_named


def rotate_reference(
    q: Tensor,
    k: Tensor,
    positions: Tensor,
    inverse_frequencies: Tensor,
    *,
    feature_map: str = "identity",
    reflection: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(Mφ(x)) · exp(i·position·frequency) for x = q and k, M = I - 2nnᵀ the Householder reflection along n."""
    phi = feature_map_named(feature_map)
    angles = positions[..., None].to(inverse_frequencies.dtype) * inverse_frequencies  # [T, D/2] or [B, T, D/2]
    rotation = torch.polar(torch.ones_like(angles), angles).unsqueeze(-2)
    results = []
    for x in (q, k):
        x = phi(x)
        if reflection is not None:
            x = x @ (torch.eye(x.shape[-1]).to(reflection) - 2 * torch.outer(reflection, reflection))
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        results.append(torch.view_as_real(pairs * rotation).flatten(-2))
    return results[0], results[1]
