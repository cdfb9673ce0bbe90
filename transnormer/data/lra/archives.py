"""Files of a download, whether it lies there as a folder or still as the archive it came in."""

from __future__ import annotations

import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from transnormer.errors import DataError

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


def is_archive(path: Path) -> bool:
    """Whether a path names a tar archive."""
    return path.name.endswith(SUFFIXES)


def read_members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """(name, content) of the wanted files of an archive, in the order of their names; nothing is unpacked to disk."""
    try:
        with tarfile.open(path) as archive:
            found = {
                member.name.removeprefix("./"): archive.extractfile(member).read()  # type: ignore[union-attr]
                for member in archive
                if member.isfile() and wanted(member.name.removeprefix("./"))
            }
            # tarfile stops at its own end mark; the checksum of gzip, bzip2 or xz comes after it.
            while archive.fileobj.read(1 << 20):
                pass
    except FileNotFoundError:
        raise DataError(f"{path} does not exist", "check the path") from None
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError) as problem:
        raise DataError(f"{path} is truncated or damaged: {problem}", "download it again") from problem
    yield from sorted(found.items())
