"""The carried state: a model whose state has a fixed size reads whole documents, without any window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transnormer.data.documents import Document, Documents
from transnormer.data.streams import TokenStream
from transnormer.errors import ConfigError
from transnormer.mixers.registry import mixer_class
from transnormer.models.cache import DecodeCache
from transnormer.models.config import TransNormerConfig
from transnormer.tasks.masking import IGNORED
from transnormer.tasks.protocols.positions import require_positions
from transnormer.tasks.protocols.spans import SUMS, as_sums


@dataclass(frozen=True)
class CarriedState:
    """Documents are read in segments, with the state from one to the next.

    What a segment's tokens predict is what they would in one pass over all of their document before them.
    """

    documents: Documents
    segment: int = 8192

    @property
    def description(self) -> str:
        """How a stream is read, in a clause."""
        return f"no windows, the state is carried through {self.documents.rule}"

    def sums(self, model: Any, stream: TokenStream, device: torch.device, tokens_at_once: int) -> Tensor:
        """Loss, targets and hits of a stream (see `spans.SUMS`); documents of similar length are read side by side."""
        documents = sorted(self.documents.spans(len(stream)), key=len, reverse=True)
        require_fixed_state(model.config)
        require_positions(model.config, len(documents[0]))
        totals = torch.zeros(len(SUMS), dtype=torch.float64, device=device)
        while documents:
            rows = max(1, tokens_at_once // min(self.segment, len(documents[0])))
            totals += self._score(model, stream, documents[:rows], device)
            documents = documents[rows:]
        return totals

    def _score(self, model: Any, stream: TokenStream, documents: list[Document], device: torch.device) -> Tensor:
        """The sums of some documents, the longest first."""
        totals = torch.zeros(len(SUMS), dtype=torch.float64, device=device)
        cache = DecodeCache(model.config)
        for offset in range(0, len(documents[0]), self.segment):
            reading = [document for document in documents if len(document) > offset]
            if len(reading) < len(documents):
                cache.batch_select_indices(torch.arange(len(reading), device=device))
                documents = reading
            width = min(self.segment, len(documents[0]) - offset)
            # The end of a row may be padding, without a mask: no token of that row comes behind it.
            inputs = np.zeros((len(documents), width), dtype=np.int64)
            targets = np.full((len(documents), width), IGNORED, dtype=np.int64)
            for row, document in enumerate(documents):
                first = document.start + offset
                ids = stream.read(first, min(first + width, document.stop) + 1)
                inputs[row, : len(ids) - 1], targets[row, : len(ids) - 1] = ids[:-1], ids[1:]
            loss, hits = model.score_targets(
                *(torch.from_numpy(part).to(device) for part in (inputs, targets)), past_key_values=cache
            )
            totals += as_sums(loss, int((targets != IGNORED).sum()), hits)
        return totals


def require_fixed_state(config: TransNormerConfig) -> None:
    """Refuse a model whose state grows with every token."""
    growing = sorted({name for name in config.mixers or () if not mixer_class(name).traits.recurrent})
    if growing:
        raise ConfigError(
            f"--carry needs a state of fixed size, that of {', '.join(growing)} grows with every token",
            "use --stride N: sliding windows give every token that much context",
        )
