"""BatchNorm of token sequences: per feature, over all real tokens of a batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from transnormer.ops.shapes import accumulation_dtype


class BatchNorm(nn.Module):
    """BatchNorm (Ioffe and Szegedy 2015) of x [B, T, width] over the tokens that `mask` [B, T] calls real.

    In training a token's result depends on all others, later ones too: not for causal models. For evaluation it keeps
    running statistics, so a sequence's result does not depend on its company. Statistics are at least float32.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, width: int, *, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width))
        self.register_buffer("running_mean", torch.empty(width))
        self.register_buffer("running_var", torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        nn.init.zeros_(self.running_mean)
        nn.init.ones_(self.running_var)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if not self.training:
            wide = x.to(accumulation_dtype(x.dtype))
            return _scaled(wide, self.running_mean, self.running_var, self.weight, self.bias, self.eps).to(x.dtype)
        y, mean, unbiased = _InTraining.apply(x, self.weight, self.bias, mask, self.running_mean, self.eps)
        with torch.no_grad():
            self._follow(self.running_mean, mean)
            self._follow(self.running_var, unbiased)
        return y

    def _follow(self, running: Tensor, found: Tensor) -> None:
        """Move towards what a batch had, unless that is no number: a batch that training skips leaves no trace."""
        moved = running.lerp(found.to(running.dtype), self.momentum)
        running.copy_(torch.where(moved.isfinite(), moved, running))


class _InTraining(torch.autograd.Function):
    """The norm with the statistics of this batch: the result, the mean, and the unbiased variance.

    The gradient of x is one line, a·dy + b·(x - mean) + c by feature, rounded to the dtype of x. Left to autograd it
    is the sum of four paths through float32, which a compiler writes to memory as such.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor | None, running_mean: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        # One pass over x: sums of x and x², counted from the running mean, so that little cancels.
        wide = x.to(accumulation_dtype(x.dtype))
        shift = running_mean.to(wide.dtype)
        moved = wide - shift
        if mask is None:
            count = torch.full((), x.shape[0] * x.shape[1], dtype=wide.dtype, device=x.device)
        else:
            count = mask.sum().clamp(min=1).to(wide.dtype)
            moved = torch.where(mask.unsqueeze(-1), moved, 0.0)
        first = moved.sum(dim=(0, 1)) / count
        squares = moved.square().sum(dim=(0, 1))
        mean, variance = shift + first, (squares / count - first.square()).clamp(min=0)
        # Not from `variance`, which the backward keeps: Triton 3.6 cannot compile a kernel that stores it and then goes
        # on with it, in every shape.
        unbiased = (squares - first.square() * count).clamp(min=0) / (count - 1).clamp(min=1)
        y = _scaled(wide, mean, variance, weight, bias, eps)
        # Not `.to` where it changes nothing: PyTorch 2.11's compiler then takes all gradients to be zero.
        y = y if y.dtype == x.dtype else y.to(x.dtype)
        ctx.save_for_backward(x, weight, mask, mean, variance, count)
        ctx.mark_non_differentiable(mean, unbiased)
        ctx.eps = eps
        return y, mean, unbiased

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mask, mean, variance, count = ctx.saved_tensors
        dy, centred = dy.to(mean.dtype), x.to(mean.dtype) - mean
        inverse = torch.rsqrt(variance + ctx.eps)
        scale = inverse * weight
        dbias = dy.sum(dim=(0, 1))
        dweight = (dy * centred).sum(dim=(0, 1)) * inverse
        # All tokens were normalised with the statistics, real ones alone are in them.
        through = centred * (-scale * inverse * dweight / count) - scale * dbias / count
        dx = dy * scale + (through if mask is None else torch.where(mask.unsqueeze(-1), through, 0.0))
        return dx.to(x.dtype), dweight.to(weight.dtype), dbias.to(weight.dtype), None, None, None


def _scaled(x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return (x - mean) * (torch.rsqrt(variance + eps) * weight) + bias
