"""NormAttention: XNorm(φ(Q)(φ(K)ᵀV)), linear attention whose gradient is bounded (paper, section 4.1)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from transnormer.mixers.contract import AttentionMixer, State, Traits, real_tokens
from transnormer.mixers.positions import Rotation, token_positions
from transnormer.mixers.registry import register
from transnormer.mixers.xnorm import XNorm
from transnormer.ops import norm_attention
from transnormer.ops.feature_maps import feature_map_named


@register("norm")
class NormAttention(AttentionMixer):
    """The feature map comes before the rotation: a rotated feature may be negative, which only XNorm forgives."""

    traits = Traits(
        summary="linear attention without denominator, normalised output",
        paper="Qin et al. 2022, The Devil in Linear Transformer",
        causal=True,
        bidirectional=True,
        recurrent=True,
        cost="T",
        cache="linear_attention",
    )
    qkv_gain: ClassVar[float] = 2**-0.5

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        causal: bool,
        max_length: int,
        *,
        feature_map: str = "1+elu",
        xnorm: str = "rms",
        position: str = "none",
    ) -> None:
        super().__init__(hidden_size, num_heads, causal, max_length)
        self.phi = feature_map_named(feature_map)
        self.rotation = Rotation(position, self.head_dim)
        self.xnorm = XNorm(xnorm, hidden_size)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, state: State | None
    ) -> Tensor | tuple[Tensor, State]:
        positions = token_positions(q, state["length"] if state else None)
        q, k = self.rotation(self.phi(q), self.phi(k), positions)
        out, memory = norm_attention(
            q,
            k,
            v,
            causal=self.causal,
            feature_map="identity",
            mask=mask,
            state=state.get("memory") if state else None,
            return_state=True,
        )
        y = self.o_proj(self.xnorm(out))
        if state is None:
            return y
        return y, {"length": state["length"] + real_tokens(q, mask), "memory": memory}
