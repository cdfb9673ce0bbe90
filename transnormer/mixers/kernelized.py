"""Kernelized attention: the Gaussian kernel in place of softmax, exp(-‖q̂ - k̂‖²/2)V (Chen et al. 2021, Skyformer)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from transnormer.errors import ConfigError
from transnormer.mixers.components.matrix import visible_pairs
from transnormer.mixers.components.precision import widened
from transnormer.mixers.contract import AttentionMixer, State, Traits
from transnormer.mixers.registry import register
from transnormer.ops.autocast import without_autocast
from transnormer.ops.shapes import zero_padding


def gaussian_kernel(x: Tensor, y: Tensor) -> Tensor:
    """exp(-‖x_i - y_j‖²/2) for x [..., n, D] and y [..., m, D]: [..., n, m]."""
    half_x = x.square().sum(dim=-1, keepdim=True) / 2
    half_y = y.square().sum(dim=-1, keepdim=True) / 2
    return (x @ y.mT - half_x - half_y.mT).exp()


@register("kernelized")
class KernelizedAttention(AttentionMixer):
    """q̂ = q·D^(-1/4), k̂ alike: softmax's exp(q·k/√D), each side divided by its own norm's share; no row sum.

    The output grows with the number of tokens near a query. `dropout` acts on the kernel's entries.
    """

    traits = Traits(
        summary="Gaussian kernel instead of softmax, no normalisation",
        paper="Chen et al. 2021, Skyformer: Remodel Self-Attention with Gaussian Kernel",
        cost="T^2",
    )

    def __init__(
        self, hidden_size: int, num_heads: int, causal: bool, max_length: int, *, dropout: float = 0.0
    ) -> None:
        super().__init__(hidden_size, num_heads, causal, max_length)
        if not 0 <= dropout < 1:
            raise ConfigError(f"kernelized: dropout must lie in [0, 1), got {dropout}")
        self.dropout = dropout

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, state: State | None) -> Tensor:
        dtype = v.dtype
        with without_autocast(v.device):
            # A padded key adds nothing when its value is zero: no row sum could see the key itself.
            q, k, v = (x.transpose(1, 2) for x in widened(q, k, zero_padding(v, mask)))  # [B, H, T, D]
            weights = F.dropout(self._kernel(q, k), self.dropout, self.training)
            out = (weights @ v).transpose(1, 2)
        return self.o_proj(out.flatten(-2).to(dtype))

    def matrix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """The kernel itself: there is no row sum."""
        q, k, _ = self.project(x)
        kernel = self._kernel(q.transpose(1, 2), k.transpose(1, 2))
        return kernel.masked_fill(~visible_pairs(x, mask, causal=False), 0)

    def _kernel(self, q: Tensor, k: Tensor) -> Tensor:
        """Of q, k [B, H, T, D]: [B, H, T, T]."""
        scale = self.head_dim**-0.25
        return gaussian_kernel(q * scale, k * scale)
