"""Causal language modelling: predict each token from those before it in its window."""

from __future__ import annotations

from typing import Any

import numpy as np

from transnormer.config.schema import RunConfig
from transnormer.data.store import SplitInfo
from transnormer.data.streams import after_first
from transnormer.data.windows import Windows
from transnormer.models.heads import TransNormerForCausalLM
from transnormer.tasks.text_scores import text_counts, text_scores, with_text
from transnormer.tasks.token_windows import Sample, TokenWindowTask


class CausalLM(TokenWindowTask):
    """Scored on consecutive windows of T = `data.sequence_length`; window i is tokens[i*T : i*T + T + 1].

    perplexity       exp of the mean loss per token (per word, for a word-level vocabulary)
    word_perplexity  exp of the loss per word of the source text (SplitInfo says what a word is)
    bits_per_byte    loss in bits per byte of the source text
    accuracy         share of tokens predicted exactly

    Every token of a split but its first is a target exactly once, and the words and bytes are theirs, counted. When
    `eval_windows` cuts the evaluation short, they are the targets' share of the split's: exact where each token is one
    byte or one word, otherwise an estimate. A store of bare ids, without text, has neither bytes nor words, and no
    scores per byte and per word. Other ways to score the same model are in `tasks/protocols`.
    """

    name = "causal_lm"

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        if "test" in self.store.splits:
            self.test_split = "test"

    @property
    def protocol(self) -> str:
        length, limit = self.config.data.sequence_length, self.config.data.eval_windows
        which = "every token but the first of the split" if limit is None else f"the first {limit} windows"
        return f"non-overlapping windows of {length} tokens, context restarts at each window, scored on {which}"

    def windows(self, split: str) -> Windows:
        return Windows(self.store.split(split), stride=self.config.data.sequence_length, lookahead=1)

    def train_sample(self, window: np.ndarray, position: int) -> Sample:
        return window[:-1], window[1:]

    def eval_sample(self, window: np.ndarray, index: int) -> Sample:
        return window[:-1], window[1:]

    def build_model(self) -> TransNormerForCausalLM:
        return TransNormerForCausalLM(self.model_config(causal=True))

    def complete(self, split: str, sums: dict[str, float]) -> dict[str, float]:
        return with_text(sums, self._scorable(split))

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        return text_scores(sums)

    def facts(self, split: str, sums: dict[str, float]) -> dict[str, Any]:
        return {"context": self.config.data.sequence_length, "counts": text_counts(sums, self._scorable(split))}

    def _scorable(self, split: str) -> SplitInfo:
        return after_first(self.store.split(split), self.store.splits[split], self.tokenizer)
