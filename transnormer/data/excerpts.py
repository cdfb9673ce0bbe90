"""Byte ranges of text files, and reading them a chunk at a time."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from transnormer.data.chunking import rechunk
from transnormer.errors import DataError
from transnormer.files import read_errors, sha256

CHUNK_BYTES = 2**20


@dataclass(frozen=True)
class Excerpt:
    """Bytes start .. stop - 1 of a file; `name` is how the manifest calls the file, the same on every machine."""

    path: Path
    name: str
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def whole_file(path: Path, name: str | None = None) -> Excerpt:
    """All of a file; a DataError if there is no such file or nothing in it."""
    if path.is_dir():
        raise DataError(f"{path} is a folder, not a text file", f"use a pattern such as '{path}/*.txt'")
    if not path.is_file():
        raise DataError(f"{path} does not exist", "check the spelling, or use a pattern such as 'my/*.txt'")
    size = path.stat().st_size
    if size == 0:
        raise DataError(f"{path} is empty", "remove it from the input or put text into it")
    return Excerpt(path, name or path.name, 0, size)


def read_bytes(excerpt: Excerpt) -> Iterator[bytes]:
    """The raw bytes, a chunk at a time."""
    with read_errors(excerpt.path), excerpt.path.open("rb") as file:
        file.seek(excerpt.start)
        left = len(excerpt)
        while left:
            data = file.read(min(CHUNK_BYTES, left))
            if not data:
                raise DataError(f"{excerpt.path} shrank while it was read", "run the command again")
            left -= len(data)
            yield data


def read_text(excerpt: Excerpt) -> Iterator[str]:
    """The text, a chunk at a time, cut where tokenizers do not notice; a DataError names a byte that is not text."""
    return rechunk(_decoded(excerpt))


def _decoded(excerpt: Excerpt) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = excerpt.start
    for data in read_bytes(excerpt):
        if (nul := data.find(b"\0")) >= 0:
            raise DataError(
                f"{excerpt.path} is binary: byte {offset + nul} is NUL", "leave it out, or save it as plain UTF-8 text"
            )
        held_back = len(decoder.getstate()[0])
        try:
            text = decoder.decode(data)
        except UnicodeDecodeError as problem:
            _not_utf8(excerpt, offset - held_back + problem.start)
        offset += len(data)
        yield text
    if decoder.getstate()[0]:
        _not_utf8(excerpt, offset - len(decoder.getstate()[0]))


def _not_utf8(excerpt: Excerpt, offset: int) -> NoReturn:
    raise DataError(
        f"{excerpt.path} is not UTF-8 text: byte {offset} cannot be decoded",
        "convert it, e.g. `iconv -f latin1 -t utf-8`, or leave it out",
    )


def cut_at_line(excerpt: Excerpt, offset: int) -> int:
    """The first line start at or after a byte offset; where the next MiB has none, the next character start."""
    with excerpt.path.open("rb") as file:
        file.seek(excerpt.start + offset)
        following = file.read(min(CHUNK_BYTES, len(excerpt) - offset))
    line_end = following.find(b"\n")
    if 0 <= line_end < len(following) - 1:
        return offset + line_end + 1
    character = re.search(rb"[^\x80-\xbf]", following)
    return offset + (character.start() if character else len(following))


def first_bytes(excerpts: list[Excerpt], limit: int | None) -> list[Excerpt]:
    """The first `limit` bytes of a list of excerpts, rounded down to whole characters."""
    if limit is None:
        return excerpts
    kept: list[Excerpt] = []
    for excerpt in excerpts:
        if len(excerpt) <= limit:
            kept.append(excerpt)
            limit -= len(excerpt)
            continue
        stop = excerpt.start + _whole_characters(excerpt, limit)
        if stop > excerpt.start:
            kept.append(replace(excerpt, stop=stop))
        break
    return kept


def _whole_characters(excerpt: Excerpt, length: int) -> int:
    with excerpt.path.open("rb") as file:
        file.seek(excerpt.start)
        data = file.read(length + 1)
    while length and data[length] & 0xC0 == 0x80:  # the byte after the cut continues a character
        length -= 1
    return length


def sha256_of(path: Path) -> str:
    """sha256 of a source file; a DataError names one that cannot be read."""
    with read_errors(path):
        return sha256(path)
