"""Linear attention with the 1+elu feature map and its row-sum denominator (Katharopoulos et al. 2020).

The denominator is what the paper blames for unbounded gradients; to leave it out, `scaling: false`, is its table 1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from transnormer.mixers.components.matrix import pair_scores, visible_pairs
from transnormer.mixers.components.state import FixedState, fixed_memory
from transnormer.mixers.contract import AttentionMixer, State, Traits, real_tokens
from transnormer.mixers.registry import register
from transnormer.ops import norm_attention, norm_decode_step
from transnormer.ops.feature_maps import feature_map_named

# Added to the denominator, as in the method's own implementation.
_EPSILON = 1e-6


@register("linear_elu")
class LinearEluAttention(AttentionMixer):
    """Δ⁻¹ φ(Q)(φ(K)ᵀV) with Δ = diag(φ(Q) Σφ(K)); no rotation, which would let the denominator reach zero."""

    traits = Traits(
        summary="linear attention, 1+elu features, row-sum denominator",
        paper="Katharopoulos et al. 2020, Transformers are RNNs",
        cost="T",
        cache="linear_attention",
    )

    def __init__(
        self, hidden_size: int, num_heads: int, causal: bool, max_length: int, *, scaling: bool = True
    ) -> None:
        super().__init__(hidden_size, num_heads, causal, max_length)
        self.scaling = scaling

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, state: State | None
    ) -> Tensor | tuple[Tensor, State]:
        out, memory = norm_attention(
            q,
            k,
            self._values(v),
            causal=self.causal,
            mask=mask,
            state=state.get("memory") if state else None,
            return_state=True,
        )
        y = self._divide_and_project(out, v.dtype)
        if state is None:
            return y
        return y, {"length": state["length"] + real_tokens(q, mask), "memory": memory}

    def matrix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        phi = feature_map_named("1+elu")
        q, k, _ = self.project(x)
        weights = pair_scores(phi(q), phi(k)).masked_fill(~visible_pairs(x, mask, causal=self.causal), 0)
        return weights / (weights.sum(dim=-1, keepdim=True) + _EPSILON) if self.scaling else weights

    def fixed_state(self, length: Tensor, capacity: int, dtype: torch.dtype) -> FixedState:
        return fixed_memory(length, self.num_heads, (self.head_dim, self.head_dim + self.scaling), dtype)

    def step(self, x: Tensor, state: FixedState) -> Tensor:
        q, k, v = self.project(x)
        out = norm_decode_step(q, k, self._values(v), state["memory"], positions=state["length"])
        return self._divide_and_project(out, v.dtype)

    def _values(self, v: Tensor) -> Tensor:
        return with_ones(v) if self.scaling else v

    def _divide_and_project(self, out: Tensor, dtype: torch.dtype) -> Tensor:
        if self.scaling:
            out = out[..., :-1] / (out[..., -1:] + _EPSILON)
        return self.o_proj(out.flatten(-2).to(dtype))


def with_ones(v: Tensor) -> Tensor:
    """[B, T, H, D] -> [B, T, H, D + 1]: the row sums are the product with one more column, so one state serves both."""
    return F.pad(v, (0, 1), value=1.0)
