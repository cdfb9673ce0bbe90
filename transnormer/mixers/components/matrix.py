"""Attention matrices [B, H, T, T] written out: row t holds the weights with which token t takes all values.

No layer computes with them, most exist to avoid them: they are what analyses look at, each from its method's equation.
"""

from __future__ import annotations

import torch
from torch import Tensor


def pair_scores(q: Tensor, k: Tensor) -> Tensor:
    """q_t·k_s for q, k [B, T, H, D]: [B, H, T, T]."""
    return torch.einsum("bthd,bshd->bhts", q, k)


def visible_pairs(x: Tensor, mask: Tensor | None, *, causal: bool, block_size: int | None = None) -> Tensor:
    """Which tokens each one of x [B, T, ...] sees: real ones, none after it, of its block; [B or 1, 1, T, T]."""
    position = torch.arange(x.shape[1], device=x.device)
    query, key = position[:, None], position[None, :]
    visible = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device)
    if causal:
        visible = visible & (query >= key)
    if block_size is not None:
        visible = visible & (query // block_size == key // block_size)
    if mask is None:
        return visible[None, None]
    real = mask.bool()
    return visible & real[:, None, None, :] & real[:, None, :, None]


def softmax_over(scores: Tensor, visible: Tensor) -> Tensor:
    """softmax over the visible tokens of each row; a row that sees nothing, as padding does, is zero."""
    return scores.masked_fill(~visible, -torch.inf).softmax(dim=-1).masked_fill(~visible, 0)


def identity_values(x: Tensor, num_heads: int) -> Tensor:
    """Values [B, T, H, T] of which an attention makes its own matrix: token s has a one in column s."""
    length = x.shape[1]
    eye = torch.eye(length, dtype=x.dtype, device=x.device)
    return eye[None, :, None, :].expand(x.shape[0], length, num_heads, length)
