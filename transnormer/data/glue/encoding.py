"""Sentences and pairs as RoBERTa reads them: <s> a </s>, and <s> a </s></s> b </s>, without token types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from transnormer.data.tokenizers import encode_texts
from transnormer.errors import ConfigError

_AT_ONCE = 1024


class Encoder:
    """Ids of one text or of two, at most `max_length` with their marks; of two, the longer is cut first."""

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        if tokenizer.cls_token_id is None or tokenizer.sep_token_id is None:
            raise ConfigError(
                "the tokenizer has no <s> and </s> to mark sentences", "use roberta:FOLDER, or a saved one"
            )
        self.tokenizer, self.max_length = tokenizer, max_length
        self._begin, self._end = [tokenizer.cls_token_id], [tokenizer.sep_token_id]

    def __call__(self, examples: Sequence[tuple[str, ...]]) -> Iterator[np.ndarray]:
        """The ids of each example, in order."""
        for start in range(0, len(examples), _AT_ONCE):
            part = examples[start : start + _AT_ONCE]
            flat = iter(encode_texts(self.tokenizer, [text for texts in part for text in texts]))
            for texts in part:
                yield self._marked([next(flat) for _ in texts])

    def _marked(self, texts: list[list[int]]) -> np.ndarray:
        begin, end = self._begin, self._end
        if len(texts) == 1:
            return np.array(begin + texts[0][: self.max_length - 2] + end)
        first, second = shares(len(texts[0]), len(texts[1]), self.max_length - 4)
        return np.array(begin + texts[0][:first] + end + end + texts[1][:second] + end)


def shares(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of two texts stay: the longer gives way until both fit, or until they are equally long."""
    shorter = min(first, second, room // 2)
    if first <= second:
        return shorter, min(second, room - shorter)
    return min(first, room - shorter), shorter
