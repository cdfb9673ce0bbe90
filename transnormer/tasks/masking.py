"""BERT's corruption of a token sequence, with RoBERTa's numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from transnormer.errors import ConfigError

SHARE, TO_MASK, TO_RANDOM = 0.15, 0.8, 0.1
IGNORED = -100  # the target of a position that is not scored, as cross entropy has it


class Masking:
    """Chooses 15 % of the real tokens; of these 80 % become <mask>, 10 % a random token, 10 % stay.

    Real tokens are all but the special ones: padding and the marks of beginnings and ends are never chosen, and never
    put in as random tokens.
    """

    def __init__(self, tokenizer: Any) -> None:
        if tokenizer is None or tokenizer.mask_token_id is None:
            raise ConfigError(
                "masked_lm needs a tokenizer with a <mask> token",
                "prepare the store with the tokenizer byte, bpe, word or roberta:FOLDER",
            )
        added = [number for number, token in tokenizer.added_tokens_decoder.items() if token.special]
        self.mask_id: int = tokenizer.mask_token_id
        # RoBERTa's <s> and </s>, where the tokenizer puts such marks around a sequence.
        self.marks = [mark for mark in (tokenizer.cls_token_id, tokenizer.sep_token_id) if mark is not None]
        self.ordinary_ids = np.setdiff1d(np.arange(len(tokenizer)), added)
        # An unknown word is a word of the text, however it is written.
        special = [number for number in added if number != tokenizer.unk_token_id]
        self.is_special = np.isin(np.arange(len(tokenizer)), special)

    @staticmethod
    def most(length: int) -> int:
        """The most that it can choose of so many tokens."""
        return min(length, int(SHARE * length) + 1)

    def __call__(self, window: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """(inputs, targets) of a window between its marks; targets are IGNORED where nothing was chosen."""
        ids = np.concatenate([self.marks[:1], window, self.marks[1:]]).astype(np.int64)
        candidates = np.flatnonzero(~self.is_special[ids])
        # The fraction is rounded at random, so that it is 15 % on average at any length; a lone token is always chosen.
        count = min(len(candidates), max(1, int(SHARE * len(candidates) + rng.random())))
        chosen = rng.choice(candidates, size=count, replace=False)
        inputs, targets = ids.copy(), np.full_like(ids, IGNORED)
        targets[chosen] = ids[chosen]
        fate = rng.random(count)
        inputs[chosen[fate < TO_MASK]] = self.mask_id
        to_random = chosen[(fate >= TO_MASK) & (fate < TO_MASK + TO_RANDOM)]
        inputs[to_random] = self.ordinary_ids[rng.integers(len(self.ordinary_ids), size=len(to_random))]
        return inputs, targets
