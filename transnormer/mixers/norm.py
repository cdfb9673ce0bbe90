"""NormAttention: XNorm(φ(Q)(φ(K)ᵀV)), linear attention whose gradient is bounded (paper, section 4.1)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from transnormer.mixers.components.fixed_state import FixedState, fixed_memory
from transnormer.mixers.components.positions import Rotation, token_positions
from transnormer.mixers.components.turned import TurnedAttention
from transnormer.mixers.components.xnorm import XNorm
from transnormer.mixers.contract import State, Traits, real_tokens
from transnormer.mixers.registry import register
from transnormer.ops import norm_attention, norm_decode_step
from transnormer.ops.feature_maps import feature_map_named


@register("norm")
class NormAttention(TurnedAttention):
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
        feature_map_named(feature_map)  # an unknown one is an error when the mixer is built
        self.feature_map = feature_map
        self.rotation = Rotation(position, self.head_dim)
        self.xnorm = XNorm(xnorm, hidden_size, causal)

    def joined_options(self, positions: Tensor) -> dict[str, Any]:
        return {"positions": positions, "kind": "norm", "feature_map": self.feature_map}

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, state: State | None
    ) -> Tensor | tuple[Tensor, State]:
        positions = token_positions(q, state["length"] if state else None)
        feature_map = self.feature_map
        if self.rotation.kind != "none":  # otherwise the attention itself applies the feature map as it reads
            q, k = self.rotation(q, k, positions, feature_map)
            feature_map = "identity"
        folded = self.xnorm.folds_into(self.o_proj, v.dtype)
        out, memory, *square_sums = norm_attention(
            q,
            k,
            v,
            causal=self.causal,
            feature_map=feature_map,
            mask=mask,
            state=state.get("memory") if state else None,
            return_state=True,
            return_square_sums=folded,
        )
        y = self.xnorm.projected(self.o_proj, out, *square_sums, mask=mask)
        if state is None:
            return y
        return y, {"length": state["length"] + real_tokens(q, mask), "memory": memory}

    def fixed_state(self, length: Tensor, capacity: int, dtype: torch.dtype) -> FixedState:
        return fixed_memory(length, self.num_heads, (self.head_dim, self.head_dim), dtype)

    def step(self, x: Tensor, state: FixedState) -> Tensor:
        q, k, v = self.project(x)
        out = norm_decode_step(q, k, v, state["memory"], feature_map=self.feature_map, **self.step_options(state))
        return self.o_proj(self.xnorm(out))
