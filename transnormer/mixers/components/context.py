"""Context parallelism: sequences cut into pieces of one length, one piece for each process of a group, in order.

What crosses the border between pieces is a sum over tokens, such as NormAttention's φ(K)ᵀV of one matrix a head, and
never a token: the traffic does not grow with the sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Sources = tuple[tuple[int, ...], ...]  # for each piece, the pieces that it gets a sum of


@dataclass(frozen=True)
class Context:
    """The place of this process in the group that shares sequences."""

    rank: int
    size: int
    group: torch.distributed.ProcessGroup

    def first_position(self, x: Tensor) -> int:
        """Where in its sequence the first token of a piece x [B, T, ...] stands."""
        return self.rank * x.shape[1]

    def sum_of_others(self, x: Tensor, *, causal: bool) -> Tensor:
        """The sum of x over the pieces before this one, or, where tokens see both sides, over all other pieces."""
        everyone = range(self.size)
        return self.sum_of(
            x, tuple(tuple(p for p in everyone if p < rank or (p > rank and not causal)) for rank in everyone)
        )

    @torch.compiler.disable  # a collective of its own, between what is compiled before and behind it
    def sum_of(self, x: Tensor, sources: Sources) -> Tensor:
        """The sum of x over the pieces that `sources`, which all processes know alike, has for this one.

        Every process of the group must call it, and go backward through it.
        """
        return _SumOfPieces.apply(x, self, sources)

    def _sum(self, x: Tensor, pieces: Sequence[int]) -> Tensor:
        """The sum of x over `pieces`."""
        gathered = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.size)]
        torch.distributed.all_gather(gathered, x.contiguous(), group=self.group)
        chosen = [gathered[piece] for piece in pieces]
        return torch.stack(chosen).sum(dim=0) if chosen else torch.zeros_like(gathered[0])


class _SumOfPieces(torch.autograd.Function):
    """The backward is a sum over the pieces whose sums x was part of."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, context: Context, sources: Sources) -> Tensor:
        ctx.context, ctx.sources = context, sources
        return context._sum(x, sources[context.rank])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        takers = [piece for piece, taken in enumerate(ctx.sources) if ctx.context.rank in taken]
        return ctx.context._sum(gradient, takers), None, None
