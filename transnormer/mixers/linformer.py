"""Linformer: keys and values projected along the sequence to k rows, softmax(Q(EK)ᵀ/√D)(EV) (Wang et al. 2020)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transnormer.errors import ConfigError
from transnormer.mixers.contract import AttentionMixer, State, Traits
from transnormer.mixers.registry import register
from transnormer.ops.shapes import zero_padding


@register("linformer")
class LinformerAttention(AttentionMixer):
    """One E [num_features, max_length] per head, for keys and values alike; a shorter sequence uses its first columns.

    Padded keys and values are zero before the projection. `skyformer_compat` reproduces the code behind the published
    Long-Range-Arena row, whose E was created in a way that hides it from the optimiser: a random E that never learns.
    """

    traits = Traits(
        summary="softmax over keys projected along the sequence",
        paper="Wang et al. 2020, Linformer: Self-Attention with Linear Complexity",
        cost="T",
        no_matrix="keys are mixed along the sequence first, so a row has num_features weights, not T",
    )
    projection: Tensor

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        causal: bool,
        max_length: int,
        *,
        num_features: int = 128,
        skyformer_compat: bool = False,
    ) -> None:
        super().__init__(hidden_size, num_heads, causal, max_length)
        if not 1 <= num_features <= max_length:
            raise ConfigError(
                f"linformer: num_features must lie between 1 and max_length {max_length}, got {num_features}",
                "set the option num_features; projecting to more rows than there are tokens saves nothing",
            )
        projection = torch.empty(num_heads, num_features, max_length)
        if skyformer_compat:
            self.register_buffer("projection", projection)
        else:
            self.projection = nn.Parameter(projection)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.projection, std=0.02)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, state: State | None) -> Tensor:
        length = q.shape[1]
        if length > self.max_length:
            raise ConfigError(
                f"linformer: input of {length} tokens, but its projection was built for {self.max_length}",
                "raise the model's maximal length or shorten the input",
            )
        projection = self.projection[..., :length]
        keys, values = (torch.einsum("hkt,bthd->bhkd", projection, zero_padding(x, mask)) for x in (k, v))
        out = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values)
        return self.o_proj(out.transpose(1, 2).flatten(-2))
