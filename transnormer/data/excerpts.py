"""Byte ranges of text files, and reading them a chunk at a time."""

from __future__ import annotations

import codecs
import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, NoReturn

from transnormer.data.chunking import rechunk
from transnormer.errors import DataError
from transnormer.files import read_errors, sha256

CHUNK_BYTES = 2**20
SEARCH_BYTES = 2**12
# The spaces of `chunking.rechunk`, which are single bytes in UTF-8.
_WORD_END = re.compile(rb"[^ \t\r\n](?=[ \t\r\n])")


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
        raise DataError(f"{path} does not exist", "check the spelling; a pattern stands in quotes")
    if not os.access(path, os.R_OK):
        raise DataError(f"cannot read {path}: {os.strerror(errno.EACCES)}", "check its permissions (ls -l)")
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
                f"{excerpt.path} is binary: byte {offset + nul} is NUL ({_line(excerpt.path, offset + nul)})",
                "leave it out, or save it as plain UTF-8 text",
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
        f"{excerpt.path} is not UTF-8 text: byte {offset} cannot be decoded ({_line(excerpt.path, offset)})",
        "convert it, e.g. `iconv -f latin1 -t utf-8`, or leave it out",
    )


def _line(path: Path, offset: int) -> str:
    """The line of a file that a byte is in, for a message."""
    lines = sum(data.count(b"\n") for data in read_bytes(Excerpt(path, path.name, 0, offset)))
    return f"line {lines + 1:,}"


def cut_at_words(excerpt: Excerpt, size: int) -> Iterator[Excerpt]:
    """Parts of about `size` bytes that begin, all but the first, with the spaces that follow a word.

    Such parts tokenize as the whole does (see `chunking.rechunk`); they are longer where there is no such boundary.
    """
    start = excerpt.start
    with read_errors(excerpt.path), excerpt.path.open("rb") as file:
        while start + size < excerpt.stop:
            stop = _next_word_end(file, start + size, excerpt.stop)
            yield replace(excerpt, start=start, stop=stop)
            start = stop
    if start < excerpt.stop:
        yield replace(excerpt, start=start)


def cut_anywhere(excerpt: Excerpt, size: int) -> Iterator[Excerpt]:
    """Parts of `size` bytes."""
    for start in range(excerpt.start, excerpt.stop, size):
        yield replace(excerpt, start=start, stop=min(start + size, excerpt.stop))


def _next_word_end(file: BinaryIO, offset: int, stop: int) -> int:
    """The first place behind `offset` where a word ends and a space follows; `stop` where there is none."""
    while offset < stop:
        file.seek(offset)
        data = file.read(min(SEARCH_BYTES, stop - offset))
        for found in _WORD_END.finditer(data):
            first = found.start()
            while first and data[first] & 0xC0 == 0x80:  # a byte that continues a character
                first -= 1
            character = data[first : found.end()].decode("utf-8", "replace")
            # At the edge a character may be cut; some spaces are longer than a byte.
            if data[first] & 0xC0 != 0x80 and not character.isspace():
                return offset + found.end()
        if offset + len(data) >= stop or len(data) <= 4:
            break
        offset += len(data) - 4  # the last character, and the space behind it, in one look
    return stop


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
        file.seek(excerpt.start + max(0, length - 4))
        around = file.read(min(length, 4) + 1)
    while len(around) > 1 and around[-1] & 0xC0 == 0x80:  # the byte after the cut continues a character
        around = around[:-1]
        length -= 1
    return length


def sha256_of(path: Path) -> str:
    """sha256 of a source file; a DataError names one that cannot be read."""
    with read_errors(path):
        return sha256(path)
