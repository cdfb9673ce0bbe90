"""NormAttention written from the equation, with the T×T score matrix: what every other path must equal."""

from __future__ import annotations

import torch
from torch import Tensor

from transnormer.ops.feature_maps import feature_map_named
from transnormer.ops.shapes import zero_padding


def norm_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    feature_map: str = "1+elu",
    mask: Tensor | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """o_t = Σ_s φ(q_t)·φ(k_s) v_s over the visible real s, plus φ(q_t) times the carried state; and the new state."""
    phi = feature_map_named(feature_map)
    q, k, v = (zero_padding(x, mask) for x in (q, k, v))
    features_q, features_k = phi(q), phi(k)
    length = q.shape[1]
    scores = torch.einsum("bthd,bshd->bhts", features_q, features_k)
    visible = torch.ones(length, length, dtype=torch.bool, device=q.device)
    if causal:
        visible = visible.tril()
    visible = visible[None, None]
    real = torch.ones(q.shape[:2], dtype=torch.bool, device=q.device) if mask is None else mask.bool()
    visible = visible & real[:, None, None, :]
    scores = torch.where(visible, scores, torch.zeros_like(scores))
    out = torch.einsum("bhts,bshe->bthe", scores, v)
    new_state = torch.einsum("bthd,bthe->bhde", features_k * real[:, :, None, None], v)
    if state is not None:
        out = out + torch.einsum("bthd,bhde->bthe", features_q, state.to(q.dtype))
        new_state = new_state + state
    return out * real[:, :, None, None], new_state
