"""XNorm, the norm that replaces the denominator of linear attention (paper, section 4.1); any of these will do."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from transnormer.errors import ConfigError, did_you_mean
from transnormer.ops import rms_norm

XNORMS = ("none", "rms", "rms_gain", "layer", "head_rms")


class XNorm(nn.Module):
    """Join the heads [B, T, H, D] -> [B, T, H·D] and normalise.

    `rms` runs over the whole width without parameters (the authors' choice); `rms_gain` adds a learned gain; `layer`
    is LayerNorm; `head_rms` normalises each head by itself, which tensor parallelism can do without communication.
    """

    def __init__(self, kind: str, hidden_size: int) -> None:
        super().__init__()
        if kind not in XNORMS:
            raise ConfigError(f"unknown xnorm '{kind}'", did_you_mean(kind, XNORMS))
        self.kind = kind
        if kind == "rms_gain":
            self.weight = nn.Parameter(torch.ones(hidden_size))
        elif kind == "layer":
            self.layer = nn.LayerNorm(hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "head_rms":
            return rms_norm(x).flatten(-2)
        x = x.flatten(-2)
        if self.kind == "rms":
            return rms_norm(x)
        if self.kind == "rms_gain":
            return rms_norm(x, self.weight)
        return self.layer(x) if self.kind == "layer" else x
