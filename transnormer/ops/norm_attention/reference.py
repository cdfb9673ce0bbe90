"""NormAttention written from the equation, with the T×T score matrix: what every other path must equal."""

from __future__ import annotations

import torch
from torch import Tensor

from transnormer.ops.feature_maps import feature_map_named
from transnormer.ops.packed import sequence_of_tokens
from transnormer.ops.shapes import zero_padding


def norm_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    feature_map: str = "1+elu",
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
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
    # Which sequence of a packed row a token belongs to: [T, N]; a row that is not packed is one sequence.
    sequence = torch.zeros(length, dtype=torch.long, device=q.device)
    if cu_seqlens is not None:
        sequence = sequence_of_tokens(cu_seqlens, length)
    visible = visible & (sequence[:, None] == sequence[None, :])
    visible = visible[None, None]
    real = torch.ones(q.shape[:2], dtype=torch.bool, device=q.device) if mask is None else mask.bool()
    visible = visible & real[:, None, None, :]
    scores = torch.where(visible, scores, torch.zeros_like(scores))
    out = torch.einsum("bhts,bshe->bthe", scores, v)
    if cu_seqlens is None:
        new_state = torch.einsum("bthd,bthe->bhde", features_k * real[:, :, None, None], v)
    else:
        belongs = torch.nn.functional.one_hot(sequence).to(v.dtype)
        new_state = torch.einsum("thd,the,tn->nhde", features_k[0], v[0], belongs)
    if state is not None:
        carried = state.to(q.dtype).unsqueeze(1) if cu_seqlens is None else state[sequence].to(q.dtype).unsqueeze(0)
        out = out + torch.einsum("bthd,bthde->bthe", features_q, carried.expand(*q.shape[:2], *state.shape[1:]))
        new_state = new_state + state
    return out * real[:, :, None, None], new_state
