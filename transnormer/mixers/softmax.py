"""Vanilla attention: softmax(QKᵀ/√D)V on PyTorch's fused kernels (Vaswani et al. 2017)."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from transnormer.mixers.contract import AttentionMixer, State, Traits, real_tokens
from transnormer.mixers.fixed_state import FixedState, fixed_slots
from transnormer.mixers.packing import append_right_aligned, right_aligned_positions
from transnormer.mixers.positions import Rotation, token_positions
from transnormer.mixers.registry import register
from transnormer.ops.shapes import zero_padding


@register("softmax")
class SoftmaxAttention(AttentionMixer):
    """The baseline of every table; its cache grows with the text."""

    traits = Traits(
        summary="vanilla softmax attention (SDPA)",
        paper="Vaswani et al. 2017, Attention Is All You Need",
        causal=True,
        bidirectional=True,
        recurrent=False,
        cost="T^2",
        cache="full_attention",
    )
    qkv_gain: ClassVar[float] = 2**-0.5

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        causal: bool,
        max_length: int,
        *,
        position: str = "none",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(hidden_size, num_heads, causal, max_length)
        self.rotation = Rotation(position, self.head_dim)
        self.dropout = dropout

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, state: State | None
    ) -> Tensor | tuple[Tensor, State]:
        positions = token_positions(q, state["length"] if state else None)
        q, k = self.rotation(q, k, positions)
        if state is None:
            return self._attend(q, k, v, self._visible(q, mask), mask)
        counts = None if mask is None else real_tokens(q, mask)
        keys = append_right_aligned(state.get("keys"), k, counts)
        values = append_right_aligned(state.get("values"), v, counts)
        new_state = {"length": state["length"] + real_tokens(q, mask), "keys": keys, "values": values}
        if "keys" not in state:
            return self._attend(q, k, v, self._visible(q, mask), mask), new_state
        key_positions = right_aligned_positions(new_state["length"], keys.shape[1])[:, None, :]
        visible = (key_positions >= 0) & (key_positions <= positions[:, :, None])
        return self._attend(q, keys, values, visible, mask), new_state

    def _visible(self, q: Tensor, mask: Tensor | None) -> Tensor | None:
        """Which keys a query sees [B, T, T]; None where SDPA's own causal or full attention will do."""
        # Right padding lies after every real token: the causal mask hides it by itself.
        if mask is None or self.causal:
            return None
        # Padded queries look at themselves, so that no row of the softmax is empty.
        return mask.bool()[:, None, :] | torch.eye(q.shape[1], dtype=torch.bool, device=q.device)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, mask: Tensor | None) -> Tensor:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # [B, H, T, D]
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=None if visible is None else visible.unsqueeze(1),
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal and visible is None,
        )
        return self.o_proj(zero_padding(out.transpose(1, 2), mask).flatten(-2))

    def fixed_state(self, length: Tensor, capacity: int, dtype: torch.dtype) -> FixedState:
        return fixed_slots(length, capacity, self.num_heads, self.head_dim, dtype)

    def step(self, x: Tensor, state: FixedState) -> Tensor:
        """The slots are those of the text so far and a last one for this token, all rows alike: no mask is needed."""
        q, k, v = self.project(x)
        q, k = self.rotation(q, k, state["length"][:, None])
        keys, values = state["keys"], state["values"]
        keys[:, -1:], values[:, -1:] = k, v
        q, keys, values = (t.transpose(1, 2) for t in (q, keys, values))  # [B, H, T, D]
        return self.o_proj(F.scaled_dot_product_attention(q, keys, values).transpose(1, 2).flatten(-2))
