"""Pieces of a token stream, each read from an empty state, and the sums of their losses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transnormer.data.streams import TokenStream

SUMS = ("loss", "targets", "correct")


@dataclass(frozen=True)
class Span:
    """Tokens start .. stop - 1 are read; the last `scored` of them are asked for the token that follows."""

    start: int
    stop: int
    scored: int

    @property
    def shape(self) -> tuple[int, int]:
        """Spans of one shape are read in one batch."""
        return self.stop - self.start, self.scored


def score_spans(
    model: Any, stream: TokenStream, spans: Iterable[Span], device: torch.device, tokens_at_once: int
) -> Tensor:
    """SUMS over all spans, in float64 on the device; neighbours of one shape are read side by side."""
    totals = torch.zeros(len(SUMS), dtype=torch.float64, device=device)
    for batch in _batches(spans, tokens_at_once):
        ids = np.stack([stream.read(span.start, span.stop + 1) for span in batch])
        inputs, targets = ids[:, :-1], ids[:, -batch[0].scored :]
        loss, hits = model.score_targets(*(torch.from_numpy(part).to(device) for part in (inputs, targets)))
        totals += as_sums(loss, targets.size, hits)
    return totals


def as_sums(loss: Tensor, targets: int, hits: Tensor) -> Tensor:
    """One batch's SUMS."""
    return torch.stack([loss.double(), loss.new_tensor(targets, dtype=torch.float64), hits.double()])


def _batches(spans: Iterable[Span], tokens_at_once: int) -> Iterator[list[Span]]:
    for (length, _), group in groupby(spans, key=lambda span: span.shape):
        alike, size = list(group), max(1, tokens_at_once // length)
        yield from (alike[start : start + size] for start in range(0, len(alike), size))
