"""DiagAttention written from its definition, with the T×T matrix and an explicit block mask."""

from __future__ import annotations

import torch
from torch import Tensor

from transnormer.ops.packed import sequence_of_tokens
from transnormer.ops.shapes import zero_padding


def diag_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    block_size: int = 64,
    kind: str = "softmax",
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Weights f(q_t·k_s/√D) over the real s in the block of t (and s ≤ t when causal); f is softmax or ReLU."""
    q, k, v = (zero_padding(x, mask) for x in (q, k, v))
    scores = torch.einsum("bthd,bshd->bhts", q, k) * q.shape[-1] ** -0.5
    position = torch.arange(q.shape[1], device=q.device)
    same_sequence = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool, device=q.device)
    if cu_seqlens is not None:
        sequence = sequence_of_tokens(cu_seqlens, q.shape[1])
        same_sequence, position = sequence[:, None] == sequence[None, :], position - cu_seqlens[sequence]
    visible = same_sequence & (position[:, None] // block_size == position[None, :] // block_size)
    if causal:
        visible = visible & (position[:, None] >= position[None, :])
    real = torch.ones(q.shape[:2], dtype=torch.bool, device=q.device) if mask is None else mask.bool()
    visible = visible[None, None] & real[:, None, None, :]
    if kind == "rela":
        weights = torch.where(visible, scores, torch.zeros_like(scores)).relu()
    else:
        # A padded query may see nothing; softmax over an empty set is 0/0, and its output is zeroed below anyway.
        weights = torch.where(visible, scores, torch.full_like(scores, -torch.inf)).softmax(-1).nan_to_num(0.0)
    return torch.einsum("bhts,bshe->bthe", weights, v) * real[:, :, None, None]
