"""cosFormer: ReLU kernel with a cosine that favours near tokens (Qin et al. 2022, "Rethinking Softmax in Attention").

Weights relu(q_i)·relu(k_j)·cos(π(i - j)/2M), row-normalised. The cosine of a difference splits into functions of
the two positions, so this is linear attention with twice the features. The paper takes M as the length of the batch;
then padding, and in decoding every new token, would change the weight of all earlier ones. Here M is a constant.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from transnormer.errors import ConfigError
from transnormer.mixers.components.matrix import pair_scores, visible_pairs
from transnormer.mixers.components.positions import token_positions
from transnormer.mixers.components.precision import in_range
from transnormer.mixers.contract import AttentionMixer, State, Traits, real_tokens
from transnormer.mixers.linear_elu import with_ones
from transnormer.mixers.registry import register
from transnormer.ops import norm_attention
from transnormer.ops.shapes import accumulation_dtype

# The denominator's least value, as in the method's own implementation: a query without a positive feature gives zero.
_EPSILON = 1e-6


@register("cosformer")
class CosformerAttention(AttentionMixer):
    """`horizon` is M, by default max_length: the distance at which the weight reaches zero.

    Sequences longer than M are refused: the cosine would become negative there, and the denominator with it.
    """

    traits = Traits(
        summary="ReLU features re-weighted by the cosine of the distance",
        paper="Qin et al. 2022, cosFormer: Rethinking Softmax in Attention",
        cost="T",
        cache="linear_attention",
    )

    def __init__(
        self, hidden_size: int, num_heads: int, causal: bool, max_length: int, *, horizon: int | None = None
    ) -> None:
        super().__init__(hidden_size, num_heads, causal, max_length)
        if horizon is not None and horizon < 1:
            raise ConfigError(f"cosformer: horizon must be at least 1, got {horizon}", "leave it unset for max_length")
        self.horizon = max_length if horizon is None else horizon

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, state: State | None
    ) -> Tensor | tuple[Tensor, State]:
        self._check_length(q, mask, state)
        dtype = v.dtype
        q, k, v = in_range(q, k, v)
        positions = token_positions(q, state["length"] if state else None)
        waves = _waves(positions, self.horizon, accumulation_dtype(q.dtype))
        out, memory = norm_attention(
            _features(q, waves),
            _features(k, waves),
            with_ones(v),
            causal=self.causal,
            feature_map="identity",
            mask=mask,
            state=state.get("memory") if state else None,
            return_state=True,
        )
        y = self.o_proj((out[..., :-1] / out[..., -1:].clamp(min=_EPSILON)).flatten(-2).to(dtype))
        if state is None:
            return y
        return y, {"length": state["length"] + real_tokens(q, mask), "memory": memory}

    def matrix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        self._check_length(x, mask, None)
        q, k, _ = self.project(x)
        waves = _waves(token_positions(x, None), self.horizon, accumulation_dtype(q.dtype))
        scores = pair_scores(_features(q, waves), _features(k, waves))
        weights = scores.masked_fill(~visible_pairs(x, mask, causal=self.causal), 0)
        return weights / weights.sum(dim=-1, keepdim=True).clamp(min=_EPSILON)

    def _check_length(self, x: Tensor, mask: Tensor | None, state: State | None) -> None:
        longest = x.shape[1]
        if state is not None:
            longest = int((state["length"] + real_tokens(x, mask)).max())
        elif mask is not None and longest > self.horizon:
            longest = int(real_tokens(x, mask).max())
        if longest > self.horizon:
            raise ConfigError(
                f"cosformer: a sequence of {longest} tokens, but its cosine reaches zero at {self.horizon}",
                "raise the option horizon, or the model's maximal length",
            )


@torch.library.custom_op("transnormer::cosformer_waves", mutates_args=())
def _waves(positions: Tensor, horizon: int, dtype: torch.dtype) -> Tensor:
    """Sine and cosine of positions [...] on a quarter of a circle that ends at the horizon: [2, ...].

    An op of its own so that compilers keep this small table: fused, they compute it again for every feature of every
    token, which took longer than the attention.
    """
    angles = positions.to(dtype) * (math.pi / 2 / horizon)
    return torch.stack([angles.sin(), angles.cos()])


@_waves.register_fake
def _(positions: Tensor, horizon: int, dtype: torch.dtype) -> Tensor:
    return positions.new_empty((2, *positions.shape), dtype=dtype)


def _features(x: Tensor, waves: Tensor) -> Tensor:
    """relu(x) times the sine and the cosine of its position: [B, T, H, 2D]; all ≥ 0 up to the horizon.

    None is negative, so no sum of them cancels: computed in the dtype of the waves and rounded once, they are as exact
    as x.
    """
    positive = x.relu()
    return torch.cat([positive * wave[..., None, None] for wave in waves], dim=-1).to(x.dtype)
