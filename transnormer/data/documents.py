"""Where the documents of a token stream end: at end-of-text tokens, at Wikipedia's title lines, or nowhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from tokenizers import models

from transnormer.data.corpora import TITLE, WITH_TITLES
from transnormer.data.streams import TokenStream
from transnormer.data.tokenizers import bytes_of_tokens, writes_bytes

_SCANNED = 2**22  # tokens looked at in one piece
_TITLE_LINE = re.compile(rb"(?:\A|(?<=\n))" + TITLE.pattern)


@dataclass(frozen=True)
class Document:
    """Tokens start .. stop - 1 are read, each predicts the one behind it."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Documents:
    """Positions of the tokens that end a document, and the rule by which they were found, in a clause.

    A document begins with the token that ends the one before it: so every token but the first of the stream is
    predicted, the first of a document from that token alone.
    """

    ends: Sequence[int] = field(default=())
    rule: str = "all of it as one stream"

    def spans(self, tokens: int) -> list[Document]:
        """The documents of a stream of so many tokens, in order."""
        return [Document(start, stop) for start, stop in pairwise([0, *self.ends, tokens - 1]) if stop > start]


def find_documents(stream: TokenStream, tokenizer: Any, corpus: str | None = None) -> Documents:
    """The documents of a stream, as its corpus has them.

    Where words are tokens, the end-of-text token ends each line, and says nothing of documents.
    """
    if tokenizer is None:
        return Documents()
    if corpus in WITH_TITLES and writes_bytes(tokenizer):
        return Documents(
            _before_titles(stream, bytes_of_tokens(tokenizer)), "each article, from the line end before it"
        )
    if isinstance(tokenizer.backend_tokenizer.model, models.WordLevel) or tokenizer.eos_token_id is None:
        return Documents()
    ends = _positions_of(stream, tokenizer.eos_token_id)
    return Documents(ends, "each document, from the end-of-text token before it") if ends else Documents()


def _positions_of(stream: TokenStream, token: int) -> list[int]:
    found: list[int] = []
    for start in range(0, len(stream), _SCANNED):
        part = stream.read(start, min(start + _SCANNED, len(stream)))
        found += (start + np.flatnonzero(part == token)).tolist()
    return found


def _before_titles(stream: TokenStream, written: list[bytes]) -> list[int]:
    """Positions of the tokens that end the line before a title."""
    pieces = [written[token] for token in stream.read(0, len(stream))]
    begins = np.cumsum([0, *map(len, pieces)])
    titles = [match.start() for match in _TITLE_LINE.finditer(b"".join(pieces))]
    return [int(token) - 1 for token in np.searchsorted(begins, titles) if token > 0]
