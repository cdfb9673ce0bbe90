"""Files of a download, whether it lies there as a folder or still as the archive it came in."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from transnormer.errors import DataError

_OPENERS: dict[str, Callable[..., Any]] = {
    ".tar": open,
    ".tar.gz": gzip.open,
    ".tgz": gzip.open,
    ".tar.bz2": bz2.open,
    ".tar.xz": lzma.open,
}
SUFFIXES = tuple(_OPENERS)
# The archives that are read here unpack to less than ten times their size, and to less than half a GiB.
_MOST_TIMES, _MOST_BYTES = 50, 2**30


def is_archive(path: Path) -> bool:
    """Whether a path names a tar archive."""
    return path.name.endswith(SUFFIXES)


def read_members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """(name, content) of the wanted files of an archive, in the order of their names; nothing is unpacked to disk."""
    found = {}
    opener = next(opener for suffix, opener in _OPENERS.items() if path.name.endswith(suffix))
    try:
        with opener(path, "rb") as file:
            bounded: Any = _Bounded(file, path)  # a stream is asked for nothing but `read`
            with tarfile.open(fileobj=bounded, mode="r|") as archive:
                for member in archive:
                    name = member.name.removeprefix("./")
                    if member.isfile() and not member.issparse() and wanted(name):
                        found[name] = archive.extractfile(member).read()  # type: ignore[union-attr]
            # tarfile stops at its own end mark; the checksum of gzip, bzip2 or xz comes after it.
            while bounded.read(1 << 20):
                pass
    except FileNotFoundError:
        raise DataError(f"{path} does not exist", "check the path") from None
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError, ValueError) as problem:
        raise DataError(f"{path} is truncated or damaged: {problem}", "download it again") from problem
    yield from sorted(found.items())


class _Bounded:
    """What an archive unpacks to, read up to a bound: a few bytes can stand for gigabytes."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file, self._path = file, path
        self._left = self._most = min(_MOST_TIMES * path.stat().st_size + 2**20, _MOST_BYTES)

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._left -= len(data)
        if self._left < 0:
            hint = "no published archive does: download it again"
            raise DataError(f"{self._path} unpacks to more than {self._most:,} bytes", hint)
        return data
