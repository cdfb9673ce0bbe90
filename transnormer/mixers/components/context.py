"""Context parallelism: sequences cut into pieces of one length, one piece for each process of a group, in order.

What crosses the border between pieces is a sum over tokens, such as NormAttention's φ(K)ᵀV of one matrix a head, and
never a token: the traffic does not grow with the sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class Context:
    """The place of this process in the group that shares sequences."""

    rank: int
    size: int
    group: torch.distributed.ProcessGroup

    def first_position(self, x: Tensor) -> int:
        """Where in its sequence the first token of a piece x [B, T, ...] stands."""
        return self.rank * x.shape[1]

    @torch.compiler.disable  # a collective of its own, between what is compiled before and behind it
    def sum_of_others(self, x: Tensor, *, causal: bool) -> Tensor:
        """The sum of x over the pieces before this one, or, where tokens see both sides, over all other pieces.

        Every process of the group must call it, and go backward through it.
        """
        return _SumOfOthers.apply(x, self, causal)

    def _sum(self, x: Tensor, *, before: bool, after: bool) -> Tensor:
        """The sum of x over earlier and over later pieces, in the order of ranks, without this one's own."""
        pieces = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.size)]
        torch.distributed.all_gather(pieces, x.contiguous(), group=self.group)
        chosen = pieces[: self.rank] * before + pieces[self.rank + 1 :] * after
        return torch.stack(chosen).sum(dim=0) if chosen else torch.zeros_like(pieces[0])


class _SumOfOthers(torch.autograd.Function):
    """The backward of a sum over earlier pieces is one over later pieces: those are whose sums x was part of."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, context: Context, causal: bool) -> Tensor:
        ctx.context, ctx.causal = context, causal
        return context._sum(x, before=True, after=not causal)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.context._sum(gradient, before=not ctx.causal, after=True), None, None
