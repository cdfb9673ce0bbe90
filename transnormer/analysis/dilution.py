"""Attention dilution: the locally accumulated attention score l(i, r, N) (paper, section 3.2 and appendix F).

l(i, r, N) is the share of token i's attention that falls on the r·N tokens around it. The neighbourhood grows one token
at a time, to the left first, and at an end of the sequence on the other side alone, as in the paper's pseudocode: it
always has r·N tokens, so that l(i, 1, N) = 1. Weights that are signed or have no row sum count by their absolute value,
as a share of their row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# Curves of sequences of different lengths meet at these ratios r.
RATIOS = tuple(step / 100 for step in range(101))


@dataclass(frozen=True)
class Dilution:
    """A layer's curve of means over positions and heads: `scores` at `RATIOS`, and the area under all of its points.

    `empty_rows` is the share of rows without any weight, as ReLA may have; they are in no mean.
    """

    scores: tuple[float, ...]
    area: float
    empty_rows: float


def locally_accumulated(weights: Tensor) -> Tensor:
    """l(i, n/N, N) of attention matrices [..., N, N], for every position i and every n from 1 to N: [..., N, N].

    Cumulative sums make it one subtraction for each i and n. A row without weight gives NaN.
    """
    shares = weights.double().abs()
    shares = shares / shares.sum(dim=-1, keepdim=True)
    length = weights.shape[-1]
    until = F.pad(shares.cumsum(dim=-1), (1, 0))  # [..., i, j]: the share of tokens before j
    first, end = neighbourhoods(length, weights.device)
    return until.gather(-1, end.expand_as(weights)) - until.gather(-1, first.expand_as(weights))


def neighbourhoods(length: int, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """The n tokens around each position i: tokens first[i, n - 1] .. end[i, n - 1] - 1, both [length, length]."""
    position = torch.arange(length, device=device)[:, None]
    size = torch.arange(1, length + 1, device=device)[None, :]
    first = (position - size // 2).clamp(min=0).minimum(length - size)
    return first, first + size


class DilutionSum:
    """The mean curve of one layer as its matrices come, one text after the other; every position counts the same."""

    def __init__(self) -> None:
        self._curve = torch.zeros(len(RATIOS), dtype=torch.float64)
        self._area = 0.0
        self._rows, self._empty = 0, 0

    def add(self, weights: Tensor) -> None:
        """Take in the matrices [B, H, N, N] of a text."""
        scores = locally_accumulated(weights).flatten(0, -2)  # [rows, n]
        has_weight = ~scores[:, -1].isnan()
        curve = F.pad(scores[has_weight].sum(dim=0), (1, 0)).cpu()  # at n = 0, 1, ..., N
        length = weights.shape[-1]
        place = torch.tensor(RATIOS, dtype=torch.float64) * length
        below = place.floor().long().clamp(max=length - 1)
        self._curve += torch.lerp(curve[below], curve[below + 1], place - below)
        self._area += float(torch.trapezoid(curve)) / length
        self._rows += int(has_weight.sum())
        self._empty += int((~has_weight).sum())

    def mean(self) -> Dilution:
        """Over all texts so far; NaN where no row had any weight."""
        rows = self._rows or float("nan")
        return Dilution(
            tuple((self._curve / rows).tolist()), self._area / rows, self._empty / (self._rows + self._empty)
        )


def dilution(matrices: Iterable[Tensor]) -> Dilution:
    """The mean curve of one layer's matrices [B, H, N, N], one for each text."""
    total = DilutionSum()
    for weights in matrices:
        total.add(weights)
    return total.mean()


def uniform_attention(length: int, causal: bool) -> Tensor:
    """The matrix [1, 1, N, N] of equal weights on all tokens that may be seen: what complete dilution would be."""
    weights = torch.ones(1, 1, length, length)
    return weights.tril() if causal else weights


def mean_of(layers: Sequence[Dilution]) -> Dilution:
    """The mean over layers, each counting the same."""
    scores = torch.tensor([layer.scores for layer in layers], dtype=torch.float64).mean(dim=0)
    areas, empty = [layer.area for layer in layers], [layer.empty_rows for layer in layers]
    return Dilution(tuple(scores.tolist()), sum(areas) / len(areas), sum(empty) / len(empty))
