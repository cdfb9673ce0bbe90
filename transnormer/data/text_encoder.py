"""A corpus in batches that worker processes turn into tokens: which they are does not depend on how many work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from transnormer.data.corpora import Corpus
from transnormer.data.encoding import encode_bytes, encode_text
from transnormer.data.excerpts import Excerpt, cut_anywhere, cut_at_words, read_bytes, read_text

BATCH_BYTES = 2**21


class Piece(NamedTuple):
    """A part of a document; whether it is its beginning, and its end."""

    excerpt: Excerpt
    begins: bool
    ends: bool


class Batch(NamedTuple):
    """Consecutive pieces of one split, about BATCH_BYTES of them together: one long, or many short."""

    split: str
    pieces: tuple[Piece, ...]


class Encoded(NamedTuple):
    """Tokens of a batch of a split, and the bytes and words of text that they stand for."""

    split: str
    ids: np.ndarray
    bytes: int
    words: int


def batches(corpus: Corpus) -> Iterator[Batch]:
    """The corpus in order, split after split."""
    for split, excerpts in corpus.splits.items():
        waiting: list[Piece] = []
        for piece in _pieces(excerpts, corpus.raw):
            if waiting and sum(len(each.excerpt) for each in waiting) + len(piece.excerpt) > BATCH_BYTES:
                yield Batch(split, tuple(waiting))
                waiting = []
            waiting.append(piece)
        if waiting:
            yield Batch(split, tuple(waiting))


def _pieces(excerpts: Iterable[Excerpt], raw: bool) -> Iterator[Piece]:
    cut = cut_anywhere if raw else cut_at_words
    for excerpt in excerpts:
        for part in cut(excerpt, BATCH_BYTES):
            yield Piece(part, begins=part.start == excerpt.start, ends=part.stop == excerpt.stop)


@dataclass(frozen=True)
class TextEncoder:
    """Turns a batch into tokens, in whichever process it is called.

    tokenizer_file       tokenizer.json, and its sha256; each process reads it once
    vocab_size           decides how wide the numbers are that it returns
    end_of_document      a token to put behind each document, if any
    raw                  bytes that need not be UTF-8
    line_ends_are_words  as WikiText counts
    """

    tokenizer_file: Path
    tokenizer_sha256: str
    vocab_size: int
    end_of_document: int | None
    raw: bool
    line_ends_are_words: bool

    def __call__(self, batch: Batch) -> Encoded:
        ids: list[np.ndarray] = []
        num_bytes = num_words = 0
        for piece in batch.pieces:
            num_bytes += len(piece.excerpt)
            for part, words in self._read(piece):
                ids.append(part)
                num_words += words
            if piece.ends and self.end_of_document is not None:
                ids.append(np.array([self.end_of_document]))
        # Half of the memory, or less, on the way between processes.
        narrow = np.uint16 if self.vocab_size <= 2**16 else np.uint32
        return Encoded(batch.split, np.concatenate(ids).astype(narrow), num_bytes, num_words)

    def _read(self, piece: Piece) -> Iterator[tuple[np.ndarray, int]]:
        if self.raw:
            inside_word = not piece.begins and not _byte_before(piece.excerpt).isspace()
            for data in read_bytes(piece.excerpt):
                # A word that runs on from the chunk before has been counted there.
                continues = inside_word and not data[:1].isspace()
                inside_word = not data[-1:].isspace()
                yield encode_bytes(data), len(data.split()) - continues
            return
        for text in read_text(piece.excerpt):
            line_ends = text.count("\n") if self.line_ends_are_words else 0
            yield (
                encode_text(_tokenizer(self.tokenizer_file, self.tokenizer_sha256), text),
                len(text.split()) + line_ends,
            )


@lru_cache(maxsize=1)
def _tokenizer(file: Path, sha256: str) -> Tokenizer:
    return Tokenizer.from_file(str(file))


def _byte_before(excerpt: Excerpt) -> bytes:
    with excerpt.path.open("rb") as file:
        file.seek(excerpt.start - 1)
        return file.read(1)


def count_words(batch: Batch) -> tuple[Counter[str], int]:
    """How often each word is in a batch, and the bytes of it."""
    words = Counter(word for piece in batch.pieces for text in read_text(piece.excerpt) for word in text.split())
    return words, sum(len(piece.excerpt) for piece in batch.pieces)
