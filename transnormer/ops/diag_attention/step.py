"""New tokens of causal DiagAttention against a cache of the keys and values of the current block."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def diag_attention_step(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    query_positions: Tensor,
    key_positions: Tensor,
    block_size: int = 64,
    kind: str = "softmax",
) -> Tensor:
    """q [B, T, H, D] against keys, values [B, L, H, D] that include the new tokens; returns [B, T, H, D].

    `query_positions` [B, T] and `key_positions` [B, L] are positions in the sequence, row by row; negative: an empty
    slot. The cost is T·L, and L < block_size + T: nothing grows with the sequence.
    """
    same_block = query_positions[:, :, None] // block_size == key_positions[:, None, :] // block_size
    visible = same_block & (key_positions[:, None, :] <= query_positions[:, :, None]) & (key_positions >= 0)[:, None, :]
    visible = visible.unsqueeze(1)  # [B, 1, T, L]
    q, keys, values = (x.transpose(1, 2) for x in (q, keys, values))
    if kind == "softmax":
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=visible)
    else:
        scores = q @ keys.mT * q.shape[-1] ** -0.5
        out = torch.where(visible, scores, torch.zeros_like(scores)).relu() @ values
    return out.transpose(1, 2)
