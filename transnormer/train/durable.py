"""Writing files that are whole or absent after any crash, and saying plainly when the disk refuses."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from transnormer.errors import DiskError

TEMPORARY = ".tmp-"  # prefix of everything that is not yet, or no longer, part of a run

_REFUSALS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EFBIG}
_REFUSALS |= {errno.ENOTDIR, errno.EISDIR, errno.ENOENT, errno.ENAMETOOLONG}  # no place for a folder
_OS_ERROR = re.compile(r"\(os error (\d+)\)")  # how safetensors, written in Rust, reports an errno


@contextmanager
def disk_errors(path: Path, bytes_needed: int | None = None) -> Iterator[None]:
    """Turn a full, read-only or failing disk under `path` into a DiskError with the bytes needed and free."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        code = _errno(error)
        if code not in _REFUSALS:
            raise
        needed = f"{bytes_needed:,} bytes needed, " if bytes_needed is not None else ""
        raise DiskError(
            f"cannot write {path}: {os.strerror(code)} ({needed}{_free_bytes(path):,} bytes free)",
            hint="make room or make the folder writable; `transnormer resume` continues from the last checkpoint",
        ) from error


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step that a crash cannot split."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    with disk_errors(path, len(text)):
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by indented JSON in one step that a crash cannot split."""
    write_text(path, to_json(value, indent=2) + "\n")


def to_json(value: Any, indent: int | None = None) -> str:
    """Strict JSON; NaN and the infinities, which JSON lacks, become the strings that float() reads back."""
    return json.dumps(_strict(value), indent=indent, allow_nan=False)


def read_floats(values: dict[str, Any]) -> dict[str, float]:
    """Numbers that `to_json` wrote, the non-finite ones among them."""
    return {name: float(value) for name, value in values.items()}


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Delete a folder so that a crash midway leaves only a temporary name, never half of something."""
    doomed = path.with_name(f"{TEMPORARY}removed-{path.name}")
    path.rename(doomed)
    shutil.rmtree(doomed)


def remove_leftovers(folder: Path) -> None:
    """Delete what an interrupted writer left behind; only the holder of the run's lock may call this."""
    if not folder.is_dir():
        return
    for path in folder.glob(f"{TEMPORARY}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return value


def _errno(error: OSError | SafetensorError) -> int:
    if isinstance(error, OSError):
        return error.errno or 0
    found = _OS_ERROR.search(str(error))
    return int(found.group(1)) if found else 0


def _free_bytes(path: Path) -> int:
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free
