"""A stream of tokens to be scored: a split of a store, texts tokenized on the spot, or a part of either."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tokenizers import decoders

from transnormer.data.excerpts import read_text, whole_file
from transnormer.data.store import SplitInfo
from transnormer.data.tokenizers import encode_text
from transnormer.errors import DataError


class TokenStream(Protocol):
    """What can be read like one array of token ids; `TokenSplit` is one."""

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens start .. stop - 1 as int64."""


@dataclass(frozen=True)
class TextStream:
    """Ids in memory, with the sizes of the text that they stand for."""

    ids: np.ndarray
    info: SplitInfo

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, start: int, stop: int) -> np.ndarray:
        return self.ids[start:stop]


@dataclass(frozen=True)
class PartOfStream:
    """Tokens start .. stop - 1 of another stream."""

    stream: TokenStream
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def read(self, start: int, stop: int) -> np.ndarray:
        return self.stream.read(self.start + start, self.start + stop)


def read_texts(files: Sequence[Path], tokenizer: Any) -> TextStream:
    """Text files as documents of a store are written, with an end-of-text token before each, so that all is predicted.

    A DataError names a file that is not text, or too short to be scored.
    """
    parts, num_bytes, num_words = [], 0, 0
    for file in files:
        parts.append(np.array([tokenizer.eos_token_id], dtype=np.int64))
        tokens = 0
        for text in read_text(whole_file(file)):
            parts.append(encode_text(tokenizer, text))
            tokens += len(parts[-1])
            num_bytes += len(text.encode("utf-8"))
            num_words += len(text.split())
        if tokens < 2:
            raise DataError(f"{file} has {tokens} token, too few to be scored", "give a text of at least two tokens")
    ids = np.concatenate(parts)
    return TextStream(ids, SplitInfo(len(ids), num_bytes, num_words))


def after_first(stream: TokenStream, info: SplitInfo, tokenizer: Any) -> SplitInfo:
    """Sizes of all of a stream but its first token, which nothing predicts.

    A word whose last part is predicted counts. Exact for byte-level tokenizers, and for the words of word-level ones;
    where there is no tokenizer to ask, the first token is taken for an average one.
    """
    if tokenizer is None or not info.bytes:
        rest = (info.tokens - 1) / info.tokens
        return SplitInfo(info.tokens - 1, round(info.bytes * rest), round(info.words * rest))
    first, second = (int(token) for token in stream.read(0, 2))
    if info.words == info.tokens:  # line ends are among the words of a word-level store
        words = 1
    else:
        both, last = (tokenizer.decode(ids, skip_special_tokens=True) for ids in ([first, second], [second]))
        words = len(both.split()) - len(last.split())
    if first in tokenizer.all_special_ids:
        num_bytes = 0
    elif isinstance(tokenizer.backend_tokenizer.decoder, decoders.ByteLevel):
        num_bytes = len(tokenizer.convert_ids_to_tokens(first))  # a character of such a token is a byte
    else:
        num_bytes = len(tokenizer.decode([first]).encode("utf-8"))
    return SplitInfo(info.tokens - 1, info.bytes - num_bytes, info.words - words)
