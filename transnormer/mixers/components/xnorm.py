"""XNorm, the norm that replaces the denominator of linear attention (paper, section 4.1); any of these will do."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transnormer.errors import ConfigError, did_you_mean
from transnormer.mixers.components.batch_norm import BatchNorm
from transnormer.mixers.components.linear import are_plain, have_biases
from transnormer.ops import rms_norm

XNORMS = ("none", "rms", "rms_gain", "layer", "batch", "head_rms")
_EPSILON = 1e-6


class LayerNorm(nn.LayerNorm):
    """LayerNorm in the dtype of its input, which may be float32 where the model is float16."""

    def forward(self, input: Tensor) -> Tensor:
        weight, bias = self.weight.to(input.dtype), self.bias.to(input.dtype)
        return F.layer_norm(input, self.normalized_shape, weight, bias, self.eps)


class XNorm(nn.Module):
    """Join the heads [B, T, H, D] -> [B, T, H·D] and normalise.

    `rms` runs over the whole width without parameters (the authors' choice); `rms_gain` adds a learned gain; `layer`
    is LayerNorm; `batch` is BatchNorm, which the authors used in the Long-Range Arena; `head_rms` normalises each head
    by itself, which tensor parallelism can do without communication.
    """

    def __init__(self, kind: str, hidden_size: int, causal: bool) -> None:
        super().__init__()
        if kind not in XNORMS:
            raise ConfigError(f"unknown xnorm '{kind}'", did_you_mean(kind, XNORMS))
        if kind == "batch" and causal:
            raise ConfigError("xnorm: batch statistics see later tokens", "choose another xnorm for a causal model")
        self.kind = kind
        if kind == "rms_gain":
            self.weight = nn.Parameter(torch.ones(hidden_size))
        elif kind == "layer":
            self.layer = LayerNorm(hidden_size)
        elif kind == "batch":
            self.batch = BatchNorm(hidden_size)

    def forward(self, x: Tensor, mask: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """`mask` [B, T] says which tokens count in the statistics of a batch; the other kinds need none.

        The result is rounded to `dtype`, by default that of x: NormAttention's sums come in float32 for float16.
        """
        if self.kind == "head_rms":
            return rms_norm(x, eps=_EPSILON, dtype=dtype).flatten(-2)
        x, dtype = x.flatten(-2), dtype or x.dtype
        if self.kind == "rms":
            return rms_norm(x, eps=_EPSILON, dtype=dtype)
        if self.kind == "rms_gain":
            return rms_norm(x, self.weight, eps=_EPSILON, dtype=dtype)
        if self.kind == "batch":
            return self.batch(x, mask).to(dtype)
        return (self.layer(x) if self.kind == "layer" else x).to(dtype)

    def folds_into(self, projection: nn.Module, dtype: torch.dtype) -> bool:
        """Whether `projected` should be given the square sums, and the norm becomes a scale after the projection.

        The unnormalised sums must survive the projection, for which float16 has no range.
        """
        plain = are_plain(projection) and have_biases(projection)
        return self.kind == "rms" and plain and dtype != torch.float16 and _folding_pays()

    def projected(
        self,
        projection: nn.Module,
        x: Tensor,
        square_sums: Tensor | None = None,
        *,
        dtype: torch.dtype,
        mask: Tensor | None = None,
    ) -> Tensor:
        """projection(XNorm(x)) of x [B, T, H, D]; with its `square_sums` [B, T, H] as s·(Wx) + b, s = 1/rms(x).

        `dtype` is that of the queries, keys and values, which the projection is given again.
        """
        if square_sums is None:
            return projection(self(x, mask, dtype))
        assert isinstance(projection, nn.Linear)
        x = x.flatten(-2)
        # Added head by head, the sums are part of the kernel that scales; as a reduction of their own they took 13 us.
        mean_square = functools.reduce(torch.add, square_sums.unbind(-1)).unsqueeze(-1) / x.shape[-1]
        scale = torch.rsqrt(mean_square + _EPSILON)  # [B, T, 1]
        y = F.linear(x, projection.weight)
        return (y * scale + projection.bias).to(y.dtype)


def _folding_pays() -> bool:
    """Only a compiler fuses the scale with the residual behind it; run op by op it would cost what it saves.

    With gradients it costs more: their way back through the scale is another pass over the attention's output, and
    makes the backward kernel a third slower (H200, 64 x 512 tokens, 8 heads of 64).
    """
    return torch.compiler.is_compiling() and not torch.is_grad_enabled()
