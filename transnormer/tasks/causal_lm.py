"""Causal language modelling: predict each token from those before it in its window."""

from __future__ import annotations

import math

import numpy as np

from transnormer.data.windows import Windows
from transnormer.models.heads import TransNormerForCausalLM
from transnormer.tasks.token_windows import Sample, TokenWindowTask, perplexity, token_scores


class CausalLM(TokenWindowTask):
    """Scored on consecutive windows of T = `data.sequence_length`; window i is tokens[i*T : i*T + T + 1].

    perplexity       exp of the mean loss per token (per word, for a word-level vocabulary)
    word_perplexity  exp of the loss per word of the source text (SplitInfo says what a word is)
    bits_per_byte    loss in bits per byte of the source text
    accuracy         share of tokens predicted exactly

    Every token of a split but its first is a target exactly once. The targets' bytes and words are the split's, times
    the share of its tokens that were targets: exact where each token is one byte or one word, otherwise an estimate,
    which matters only when `eval_windows` cuts the evaluation short. A store of bare ids, without text, has neither
    bytes nor words, and no scores per byte and per word.
    """

    name = "causal_lm"

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
        info = self.store.splits[split]
        share = sums["targets"] / info.tokens
        return {**sums, "bytes": info.bytes * share, "words": info.words * share}

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        scores = token_scores(sums)
        if sums["words"]:
            scores["word_perplexity"] = perplexity(sums["loss"], sums["words"])
        if sums["bytes"]:
            scores["bits_per_byte"] = sums["loss"] / math.log(2) / sums["bytes"]
        return scores
