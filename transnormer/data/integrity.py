"""The files of a store against its manifest: cheaply by size when it is opened, and byte for byte on demand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from transnormer.errors import DataError
from transnormer.files import sha256


class RecordedFile(NamedTuple):
    """A file as the manifest has it: its path inside the store, its size in bytes, its sha256."""

    file: str
    size: int
    sha256: str


def check_sizes(store: Path, files: Iterable[RecordedFile]) -> None:
    """A DataError names the first file that is missing or has another size."""
    for file, size, _ in files:
        path = store / file
        if not path.is_file():
            raise DataError(f"{path} is missing", prepare_again(store))
        if path.stat().st_size != size:
            raise DataError(f"{path} has {path.stat().st_size:,} bytes, not {size:,} as recorded", prepare_again(store))


def check_hashes(store: Path, files: Iterable[RecordedFile]) -> None:
    """Reads every file; a DataError names the first that differs."""
    for recorded in files:
        check_sizes(store, [recorded])
        path = store / recorded.file
        actual = sha256(path)
        if actual != recorded.sha256:
            raise DataError(
                f"{path} was altered: its sha256 is {actual[:12]}..., not {recorded.sha256[:12]}... as recorded",
                prepare_again(store),
            )


def prepare_again(store: Path) -> str:
    """The hint for any damage to a store."""
    return f"remove {store} and prepare it again"
