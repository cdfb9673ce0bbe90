"""Vanilla attention: softmax(QKᵀ/√D)V on PyTorch's fused kernels (Vaswani et al. 2017)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from transnormer.mixers.components.matrix import pair_scores, softmax_over, visible_pairs
from transnormer.mixers.components.positions import Rotation, token_positions
from transnormer.mixers.components.state import FixedState, append_right_aligned, fixed_slots, right_aligned_positions
from transnormer.mixers.contract import AttentionMixer, State, Traits, real_tokens
from transnormer.mixers.registry import register
from transnormer.ops.shapes import zero_padding

# Columns that hold padded keys away, and what each adds to their scores (float16 takes less).
_COLUMNS, _LOW = 8, -1e6


@register("softmax")
class SoftmaxAttention(AttentionMixer):
    """The baseline of every table; its cache grows with the sequence."""

    traits = Traits(
        summary="vanilla softmax attention (SDPA)",
        paper="Vaswani et al. 2017, Attention Is All You Need",
        cost="T^2",
        cache="full_attention",
    )

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
        q, k = self.rotation.rotate(q, k, positions)
        if state is None:
            return self._attend(q, k, v, None, mask)
        counts = None if mask is None else real_tokens(q, mask)
        keys = append_right_aligned(state.get("keys"), k, counts)
        values = append_right_aligned(state.get("values"), v, counts)
        new_state = {"length": state["length"] + real_tokens(q, mask), "keys": keys, "values": values}
        if "keys" not in state:
            return self._attend(q, k, v, None, mask), new_state
        key_positions = right_aligned_positions(new_state["length"], keys.shape[1])[:, None, :]
        visible = (key_positions >= 0) & (key_positions <= positions[:, :, None])
        return self._attend(q, keys, values, visible, mask), new_state

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, mask: Tensor | None) -> Tensor:
        """`visible` [B, T, S] are the keys that a query sees; None: those before it, or all real ones."""
        # Right padding lies after every real token: the causal mask hides it by itself.
        if mask is not None and visible is None and not self.causal:
            q, k, v = _without_padding(q, k, v, mask)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # [B, H, T, D]
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=None if visible is None else visible.unsqueeze(1),
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal and visible is None,
            scale=self.head_dim**-0.5,
        )
        return self.o_proj(zero_padding(out[..., : self.head_dim].transpose(1, 2), mask).flatten(-2))

    def matrix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, _ = self.project(x)
        q, k = self.rotation.rotate(q, k, token_positions(x, None))
        return softmax_over(pair_scores(q, k) * self.head_dim**-0.5, visible_pairs(x, mask, causal=self.causal))

    def fixed_state(self, length: Tensor, capacity: int, dtype: torch.dtype) -> FixedState:
        return fixed_slots(length, capacity, self.num_heads, self.head_dim, dtype)

    def step(self, x: Tensor, state: FixedState) -> Tensor:
        """The slots are those of the tokens so far and a last one for this token, all rows alike: no mask is needed."""
        q, k, v = self.project(x)
        q, k = self.rotation.rotate(q, k, state["length"][:, None])
        keys, values = state["keys"], state["values"]
        keys[:, -1:], values[:, -1:] = k, v
        q, keys, values = (t.transpose(1, 2) for t in (q, keys, values))  # [B, H, T, D]
        return self.o_proj(F.scaled_dot_product_attention(q, keys, values).transpose(1, 2).flatten(-2))


def _without_padding(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """With columns behind the others that put the scores of padded keys where every exponential is zero.

    A mask [B, T, T] would be as large as the scores, and SDPA's fastest kernels take none; they do take heads of any
    multiple of eight columns. The scores lie so far down, and no farther: in a sequence without tokens there are no
    others, and what rounding makes of them must have an exponential.
    """
    low = max(_LOW, torch.finfo(k.dtype).min / (2 * _COLUMNS))
    hidden = k.new_zeros(mask.shape).masked_fill(~mask.bool(), low)[:, :, None, None].expand(*k.shape[:-1], _COLUMNS)
    ones = q.new_ones(()).expand(*q.shape[:-1], _COLUMNS)
    return torch.cat((q, ones), dim=-1), torch.cat((zero_padding(k, mask), hidden), dim=-1), F.pad(v, (0, _COLUMNS))
