"""One token of linear attention on a state of constant size: S ← S + kvᵀ, o = qS."""

from __future__ import annotations

import torch
from torch import Tensor

from transnormer.ops.shapes import accumulation_dtype


def attention_step(q: Tensor, k: Tensor, v: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """q, k [B, 1, H, D] (features) and v [B, 1, H, E] -> o [B, 1, H, E] and the state [B, H, D, E]."""
    dtype = accumulation_dtype(q.dtype)
    update = k[:, 0, :, :, None].to(dtype) * v[:, 0, :, None, :].to(dtype)
    state = update if state is None else state + update
    out = torch.einsum("bhd,bhde->bhe", q[:, 0].to(dtype), state)
    return out.unsqueeze(1).to(v.dtype), state


def attention_step_in_place(q: Tensor, k: Tensor, v: Tensor, state: Tensor) -> Tensor:
    """As `attention_step`, but `state` [B, H, D, E] itself takes the token in; returns o [B, 1, H, E]."""
    state += k[:, 0, :, :, None].to(state.dtype) * v[:, 0, :, None, :].to(state.dtype)
    # A sum and not a matrix product, so that a compiler fuses it with the update.
    out = (q[:, 0, :, :, None].to(state.dtype) * state).sum(dim=-2)
    return out.unsqueeze(1).to(v.dtype)
