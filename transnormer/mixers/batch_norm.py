"""BatchNorm of token sequences: per feature, over all real tokens of a batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class BatchNorm(nn.Module):
    """BatchNorm (Ioffe and Szegedy 2015) of x [B, T, width] over the tokens that `mask` [B, T] calls real.

    In training a token's result depends on all others, later ones too: not for causal models. For evaluation it keeps
    running statistics, so a text's result does not depend on its company. Statistics are at least float32.
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
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        if self.training:
            mean, variance = self._statistics(wide, mask)
        else:
            mean, variance = self.running_mean, self.running_var
        return ((wide - mean) * (torch.rsqrt(variance + self.eps) * self.weight) + self.bias).to(x.dtype)

    def _statistics(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and variance of this batch, which the running ones follow (with the unbiased variance).

        Both come from one pass over x: sums of x and x², counted from the running mean, so that little cancels.
        """
        shift = self.running_mean.to(x.dtype)
        moved = x - shift
        if mask is None:
            count = torch.full((), x.shape[0] * x.shape[1], dtype=x.dtype, device=x.device)
        else:
            count = mask.sum().clamp(min=1).to(x.dtype)
            moved = torch.where(mask.unsqueeze(-1), moved, 0.0)
        first = moved.sum(dim=(0, 1)) / count
        squares = moved.square().sum(dim=(0, 1))
        variance = (squares / count - first.square()).clamp(min=0)
        mean = shift + first
        with torch.no_grad():
            # Not from `variance`, which the backward keeps: Triton 3.6 cannot compile a kernel that stores it, and then
            # goes on with it, in every shape.
            unbiased = (squares - first.square() * count).clamp(min=0) / (count - 1).clamp(min=1)
            self._follow(self.running_mean, mean)
            self._follow(self.running_var, unbiased)
        return mean, variance

    def _follow(self, running: Tensor, found: Tensor) -> None:
        """Move towards what a batch had, unless that is no number: a batch that training skips leaves no trace."""
        moved = running.lerp(found.to(running.dtype), self.momentum)
        running.copy_(torch.where(moved.isfinite(), moved, running))
