"""Perplexity against context length: the same targets, predicted from more and more of what came before them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from transnormer.data.streams import PartOfStream, TokenStream
from transnormer.errors import ConfigError, DataError
from transnormer.tasks.protocols.positions import require_positions
from transnormer.tasks.protocols.spans import SUMS, Span, score_spans
from transnormer.tasks.protocols.windows import SlidingWindows


@dataclass(frozen=True)
class ContextCurve:
    """For each context c, the loss of the same targets in two ways.

    windows    the state restarts every c tokens: a target has 1 to c tokens of context, as in training at length c
    positions  the state has read c/2 tokens before the first of c/2 targets: the loss at positions c/2 .. c - 1 of a
               stream, here of streams that begin c/2 tokens apart, so that all targets stand there once

    With C the largest context, the targets follow the first C/2 tokens of the stream, and are a multiple of C: so many
    have all the context that is asked for, and whole windows of every length.
    """

    contexts: tuple[int, ...]

    def __post_init__(self) -> None:
        largest = max(self.contexts)
        for context in self.contexts:
            if context < 2 or context % 2 or largest % context:
                raise ConfigError(
                    f"--contexts: {context} is odd or does not divide {largest}, so their targets cannot be the same",
                    "double them: 128,256,512,1k",
                )

    @property
    def description(self) -> str:
        """How a stream is read, in a clause."""
        return (
            f"the same targets at every context c, after the first {max(self.contexts) // 2} tokens; windows: restart "
            "every c tokens; positions: c/2 to c - 1 tokens behind the start of a stream"
        )

    def targets(self, tokens: int) -> range:
        """Which tokens of a stream are targets, at every context."""
        largest = max(self.contexts)
        first = largest // 2
        count = (tokens - 1 - first) // largest * largest
        if count < 1:
            raise DataError(
                f"{tokens:,} tokens are too few for a context of {largest:,}, which needs {first + largest + 1:,}",
                "leave the largest --contexts out, or take more text",
            )
        return range(first + 1, first + 1 + count)

    def losses(
        self, model: Any, stream: TokenStream, device: torch.device, tokens_at_once: int
    ) -> dict[int, dict[str, dict[str, float]]]:
        """By context and way, the sums (see `spans.SUMS`) over all targets."""
        require_positions(model.config, max(self.contexts))
        targets = self.targets(len(stream))
        found: dict[int, dict[str, dict[str, float]]] = {}
        for context in sorted(self.contexts):
            half = context // 2
            streams = {
                "windows": (targets.start - 1, list(SlidingWindows(context, context).spans(len(targets) + 1))),
                "positions": (
                    targets.start - 1 - half,
                    [Span(start, start + context, half) for start in range(0, len(targets), half)],
                ),
            }
            found[context] = {}
            for way, (first, spans) in streams.items():
                part = PartOfStream(stream, first, targets.stop)
                sums = score_spans(model, part, spans, device, tokens_at_once)
                found[context][way] = dict(zip(SUMS, sums.tolist(), strict=True))
        return found
