"""DiagAttention block by block: T/w dense problems of size w, so time and memory are linear in T."""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from transnormer.ops.shapes import (
    block_length,
    first_tokens,
    has_tangents,
    in_blocks,
    number_of_blocks,
    serves_every_length,
)


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
    block = block_length(block_size, length)
    ragged = serves_every_length(length) or length % block != 0
    q, k, v = (in_blocks(x, block).flatten(0, 1).transpose(1, 2) for x in (q, k, v))  # [B·N, H, w, D]

    visible = None
    # Zeros that fill up the last block lie after every real token, so the causal mask hides them by itself.
    if mask is not None or (ragged and not causal):
        real = torch.ones(batch, length, dtype=torch.bool, device=q.device) if mask is None else mask.bool()
        real = in_blocks(real, block).flatten(0, 1)  # [B·N, w]
        # Padded queries look at themselves, so that no row of the softmax is empty.
        visible = real[:, None, :] | torch.eye(block, dtype=torch.bool, device=q.device)
        if causal:
            visible = visible.tril()
        visible = visible.unsqueeze(1)  # [B·N, 1, w, w]

    if kind == "softmax":
        with sdpa_kernel(SDPBackend.MATH) if _is_differentiated(q, k, v) else nullcontext():
            out = F.scaled_dot_product_attention(
                q, k, v, attn_mask=visible, dropout_p=dropout_p, is_causal=causal and visible is None
            )
    else:
        scores = _product(q, k.mT) * q.shape[-1] ** -0.5
        if visible is not None:
            scores = scores.masked_fill(~visible, 0)
        elif causal:
            scores = scores.tril()
        out = _product(F.dropout(scores.relu(), dropout_p), v)
    # Of no sequences -1 could be any number; an exported program cannot prove a number that it must compute.
    blocks = -1 if torch.compiler.is_exporting() else number_of_blocks(block, length)
    out = out.transpose(1, 2).unflatten(0, (batch, blocks)).flatten(1, 2)
    return first_tokens(out, length)  # [B, T, H, E]


def _product(x: Tensor, y: Tensor) -> Tensor:
    """x @ y of [B·N, H, ...], heads first: an exported program knows their number, but not that of the blocks."""
    return (x.transpose(0, 1) @ y.transpose(0, 1)).transpose(0, 1)


def _is_differentiated(*tensors: Tensor) -> bool:
    """Whether a CPU may be asked for derivatives that PyTorch's fused attention has not: the second, and forward mode.

    The formula has all of them, and takes up to a third longer in blocks of 64. An exported program goes without: the
    formula divides the number of blocks, of which nothing can be proved where the length is open.
    """
    if tensors[0].device.type != "cpu" or torch.compiler.is_exporting():
        return False
    return has_tangents(*tensors) or (torch.is_grad_enabled() and any(x.requires_grad for x in tensors))
