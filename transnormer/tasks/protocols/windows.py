"""Windows of a stream, with or without overlap: how much of what came before is read again for each target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from transnormer.data.streams import TokenStream
from transnormer.errors import ConfigError
from transnormer.tasks.protocols.positions import require_positions
from transnormer.tasks.protocols.spans import Span, score_spans


@dataclass(frozen=True)
class SlidingWindows:
    """Windows of `length` tokens, `stride` apart; each scores what the window before it did not.

    That is all of the first window and the last `stride` tokens of the others, so that every token but the first of the
    stream is a target once. With a stride of `length` nothing is read twice: what training sees, and evaluates.
    """

    length: int
    stride: int

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ConfigError(f"a window of {self.length} tokens", "use --context 512, or another number from 1 on")
        if not 1 <= self.stride <= self.length:
            raise ConfigError(
                f"--stride {self.stride} does not fit windows of {self.length} tokens",
                f"use a number from 1 to {self.length}",
            )

    @property
    def description(self) -> str:
        """How a stream is read, in a clause."""
        if self.stride == self.length:
            return f"non-overlapping windows of {self.length} tokens, context restarts at each window"
        before = self.length - self.stride
        return (
            f"sliding windows of {self.length} tokens, {self.stride} apart, each scored on its last {self.stride} with "
            f"at least {before} tokens of context, the first on all"
        )

    def spans(self, tokens: int) -> Iterator[Span]:
        """The windows of a stream of so many tokens; only the last one may be shorter."""
        scored = 0
        for start in range(0, tokens, self.stride):
            stop = min(start + self.length, tokens - 1)
            if stop > scored:
                yield Span(start, stop, stop - scored)
            scored = stop

    def sums(self, model: Any, stream: TokenStream, device: torch.device, tokens_at_once: int) -> Tensor:
        """Loss, targets and hits of a stream (see `spans.SUMS`)."""
        require_positions(model.config, min(self.length, len(stream) - 1))
        return score_spans(model, stream, self.spans(len(stream)), device, tokens_at_once)
