"""DiagAttention block by block: T/w dense problems of size w, so time and memory are linear in T."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def block_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    block_size: int,
    kind: str,
    mask: Tensor | None,
    dropout_p: float,
) -> Tensor:
    """Dense attention inside each block; the outputs of padded queries are finite but meaningless."""
    batch, length = q.shape[:2]
    block = min(block_size, length)
    ragged = length % block != 0
    q, k, v = (_in_blocks(x, block) for x in (q, k, v))  # [B·N, H, w, D]

    visible = None
    # Zeros that fill up the last block lie after every real token, so the causal mask hides them by itself.
    if mask is not None or (ragged and not causal):
        real = torch.ones(batch, length, dtype=torch.bool, device=q.device) if mask is None else mask.bool()
        real = F.pad(real, (0, -length % block), value=False).unflatten(1, (-1, block)).flatten(0, 1)  # [B·N, w]
        # Padded queries look at themselves, so that no row of the softmax is empty.
        visible = real[:, None, :] | torch.eye(block, dtype=torch.bool, device=q.device)
        if causal:
            visible = visible.tril()
        visible = visible.unsqueeze(1)  # [B·N, 1, w, w]

    if kind == "softmax":
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=visible, dropout_p=dropout_p, is_causal=causal and visible is None
        )
    else:
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if visible is not None:
            scores = scores.masked_fill(~visible, 0)
        elif causal:
            scores = scores.tril()
        out = F.dropout(scores.relu(), dropout_p) @ v
    return out.transpose(1, 2).unflatten(0, (batch, -(-length // block))).flatten(1, 2)[:, :length]  # [B, T, H, E]


def _in_blocks(x: Tensor, block: int) -> Tensor:
    """[B, T, H, D] -> [B·N, H, w, D], zero-padded to a whole number of blocks."""
    x = F.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % block))
    return x.unflatten(1, (-1, block)).flatten(0, 1).transpose(1, 2)
