"""FLASH-quad: the gated attention unit with squared-ReLU attention over all tokens (Hua et al. 2022, section 3).

o = relu(QKᵀ/N + b)²V with a learned bias b per distance. The paper divides by the length of the batch; then padding,
and in decoding every new token, would change all earlier weights. Here N is max_length, as in the runs that the
TransNormer paper compares with.
"""

from __future__ import annotations

import torch
from torch import Tensor

from transnormer.mixers.components.gated_unit import GatedUnit, squared_relu
from transnormer.mixers.components.matrix import visible_pairs
from transnormer.mixers.components.positions import token_positions
from transnormer.mixers.components.state import append_right_aligned, right_aligned_positions
from transnormer.mixers.contract import State, Traits, real_tokens
from transnormer.mixers.registry import register


@register("flash_quad")
class FlashQuad(GatedUnit):
    """`expansion` is the width of values and gate over that of the model, `query_key_size` that of the one head.

    Without a denominator the output grows with the number of keys that pass the ReLU; N keeps it of order one up to
    max_length.
    """

    traits = Traits(
        summary="gated attention unit, squared-ReLU attention",
        paper="Hua et al. 2022, Transformer Quality in Linear Time",
        cost="T^2",
        needs_ffn=False,
        cache="full_attention",
    )

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        causal: bool,
        max_length: int,
        *,
        expansion: int = 2,
        query_key_size: int = 128,
        position: str = "rope",
    ) -> None:
        super().__init__(
            hidden_size,
            num_heads,
            causal,
            max_length,
            num_pairs=1,
            expansion=expansion,
            query_key_size=query_key_size,
            position=position,
        )

    def mix(self, x: Tensor, mask: Tensor | None, state: State | None) -> Tensor | tuple[Tensor, State]:
        positions = token_positions(x, state["length"] if state else None)
        q, k = self.queries_keys(x, positions)
        v = self.values(x, mask)
        if state is None:
            return self.gated(x, self._attend(q, k, v))
        counts = None if mask is None else real_tokens(x, mask)
        keys = append_right_aligned(state.get("keys"), k, counts)
        values = append_right_aligned(state.get("values"), v.unsqueeze(2), counts)
        length = state["length"] + real_tokens(x, mask)
        if "keys" in state:
            attended = self._continue(q, keys, values, positions, right_aligned_positions(length, keys.shape[1]))
        else:
            attended = self._attend(q, k, v)
        return self.gated(x, attended), {"length": length, "keys": keys, "values": values}

    def matrix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """relu(QKᵀ/N + b)², of one head."""
        weights = self._weights(*self.queries_keys(x, token_positions(x, None)))
        return weights[:, None].masked_fill(~visible_pairs(x, mask, causal=self.causal), 0)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Among the tokens of q, k [B, T, 1, S] and v [B, T, E]: [B, T, E]."""
        return self._weights(q, k).to(v.dtype) @ v

    def _weights(self, q: Tensor, k: Tensor) -> Tensor:
        """[B, T, T]"""
        scores = q.squeeze(2) @ k.squeeze(2).mT
        weights = squared_relu(scores, self.max_length, self.bias.pairwise(q.shape[1], q.device))
        return weights.tril() if self.causal else weights

    def _continue(self, q: Tensor, keys: Tensor, values: Tensor, positions: Tensor, key_positions: Tensor) -> Tensor:
        """New queries against the whole cache, whose slots before position 0 are empty."""
        distances = positions[:, :, None] - key_positions[:, None, :]
        visible = (distances >= 0) & (key_positions >= 0)[:, None, :]
        bias = self.bias.behind(distances, keys.shape[1])
        weights = squared_relu(q.squeeze(2) @ keys.squeeze(2).mT, self.max_length, bias)
        return torch.where(visible, weights, 0).to(values.dtype) @ values.squeeze(2)
