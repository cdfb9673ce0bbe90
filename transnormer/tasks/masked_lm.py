"""Masked language modelling as in RoBERTa: find 15 % of the tokens again, chosen anew each time a window is seen."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from transnormer.data.sampling import EVAL_MASKING, TRAIN_MASKING, generator
from transnormer.data.windows import Windows
from transnormer.errors import ConfigError
from transnormer.models.heads import TransNormerForMaskedLM
from transnormer.tasks.masking import Masking
from transnormer.tasks.token_windows import Sample, TokenWindowTask, token_scores


class MaskedLM(TokenWindowTask):
    """Scored on the masked tokens of consecutive windows, with masks that never change.

    perplexity  exp of the mean loss per masked token
    accuracy    share of masked tokens found exactly

    Where the tokenizer marks sequences (RoBERTa's <s> and </s>), a window of T = `data.sequence_length` is T - 2 tokens
    of text between those two. Training masks depend on (seed, position), those of evaluation on the window alone, so
    that runs with different seeds are scored on the same masked tokens.
    """

    name = "masked_lm"

    @property
    def protocol(self) -> str:
        length, limit = self.config.data.sequence_length, self.config.data.eval_windows
        which = "all" if limit is None else f"the first {limit}"
        windows = f"{which} non-overlapping windows of {length} tokens"
        return f"{windows}, 15 % masked (80/10/10) the same way in every run, scored on the masked tokens"

    def windows(self, split: str) -> Windows:
        stride = self.config.data.sequence_length - len(self._masking.marks)
        if stride < 1:
            hint = "set it to 3 or more, e.g. 512"
            raise ConfigError("data.sequence_length leaves no room between <s> and </s>", hint)
        return Windows(self.store.split(split), stride)

    def train_sample(self, window: np.ndarray, position: int) -> Sample:
        return self._masking(window, generator(self.config.seed, position, TRAIN_MASKING))

    def eval_sample(self, window: np.ndarray, index: int) -> Sample:
        return self._masking(window, generator(0, index, EVAL_MASKING))

    @property
    def most_targets(self) -> int:
        return self._masking.most(self.config.data.sequence_length - len(self._masking.marks))

    def build_model(self) -> TransNormerForMaskedLM:
        return TransNormerForMaskedLM(self.model_config(causal=False))

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        return token_scores(sums)

    @cached_property
    def _masking(self) -> Masking:
        try:
            return Masking(self.tokenizer)
        except ConfigError as error:
            raise ConfigError(f"{self.store.path}: {error.message}", error.hint) from error
