"""Durable files: whole or absent after any crash, hashed, locked, and plain words when the disk refuses."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from filelock import lock_descriptor
from safetensors import SafetensorError

from transnormer.errors import ConfigError, DataError, DiskError, RunInUseError

TEMPORARY = ".tmp-"  # prefix of everything that is not yet, or no longer, part of a folder
HINT = "make room or make the folder writable; `transnormer resume` continues a run from its last checkpoint"
LARGEST_TEXT = 64 * 2**20  # bytes of a config, manifest or tokenizer, which are read whole; the largest known has half

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # which Windows lacks
_ON_WINDOWS = os.name == "nt"  # where a folder cannot be opened, nor a file synced that is open to read only
# What no room on the disk would change.
_PERMISSION_HINTS = {
    errno.EACCES: "check who may write there (ls -ld), or choose another place",
    errno.EPERM: "check who may write there (ls -ld), or choose another place",
    errno.EROFS: "choose a place on a disk that can be written",
}
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_OS_ERROR = re.compile(r"\(os error (\d+)\)")  # how safetensors, written in Rust, reports an errno


@contextmanager
def disk_errors(path: Path, bytes_needed: int | None = None, hint: str = HINT) -> Iterator[None]:
    """Turn what the operating system refuses under `path` into a DiskError; where room is missing it says how much.

    An error without an errno is a library's own fault and passes.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        code = _errno(error)
        if code is None:
            raise
        reason = os.strerror(code)
        if code in _NO_ROOM:
            needed = f"{bytes_needed:,} bytes needed, " if bytes_needed is not None else ""
            reason = f"{reason} ({needed}{shutil.disk_usage(nearest_existing(path)).free:,} bytes free)"
        raise DiskError(f"cannot write {path}: {reason}", _PERMISSION_HINTS.get(code, hint)) from error


def require_place_for(path: Path, hint: str = HINT) -> None:
    """Raise what writing this file or folder would, before minutes are spent on what is to be in it; write nothing."""
    with disk_errors(path, hint=hint):
        if path.is_file():
            path.open("ab").close()
        else:
            tempfile.TemporaryFile(dir=nearest_existing(path)).close()


def nearest_existing(path: Path) -> Path:
    """The path itself, or the nearest of its parents that is there."""
    return next(each for each in (path, *path.absolute().parents) if each.exists())


def write_text(path: Path, text: str, hint: str = HINT) -> None:
    """Replace `path` by `text` in one step that a crash cannot split; a device or a pipe is written to."""
    with disk_errors(path, len(text), hint):
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        temporary = path.with_name(f"{TEMPORARY}{path.name}")
        try:
            temporary.unlink(missing_ok=True)  # what a crash left, or a link that somebody put there
            with temporary.open("x", encoding="utf-8") as file:
                file.write(text)
                flush(file)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync(path.parent)


def require_no_link(path: Path) -> None:
    """Refuse a symbolic link where we write in place: what it points to is not ours to change."""
    if path.is_symlink():
        raise DiskError(
            f"{path} is a symbolic link, and what it points to would be written to",
            hint="remove the link, or put what it points to in its place",
        )


def write_json(path: Path, value: Any, hint: str = HINT) -> None:
    """Replace `path` by indented JSON in one step that a crash cannot split."""
    write_text(path, to_json(value, indent=2) + "\n", hint)


def to_json(value: Any, indent: int | None = None) -> str:
    """Strict JSON; NaN and the infinities, which JSON lacks, become the strings that float() reads back."""
    return json.dumps(_strict(value), indent=indent, allow_nan=False)


def read_floats(values: dict[str, Any]) -> dict[str, float]:
    """Numbers that `to_json` wrote, the non-finite ones among them."""
    return {name: float(value) for name, value in values.items()}


def flush(file: IO[Any]) -> None:
    """Wait until what was written to an open file is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    if _ON_WINDOWS and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if _ON_WINDOWS else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Wait until every file in a folder, and then every folder in it and itself, is on the disk."""
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            sync(Path(parent, name))
        sync(Path(parent))


@contextmanager
def read_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system refuses to read from `path` into a DataError."""
    try:
        yield
    except OSError as error:
        raise DataError.unreadable(path, error) from error


def require_small(*paths: Path, largest: int = LARGEST_TEXT) -> None:
    """Refuse files that would be read whole and have more bytes than any of their kind; those not there pass."""
    for path in paths:
        if path.is_file() and (size := path.stat().st_size) > largest:
            raise DataError(
                f"{path} has {size:,} bytes, and no such file has more than {largest:,}",
                hint="restore it, or fetch it again",
            )


def sha256(path: Path) -> str:
    """The hash of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove(path: Path) -> None:
    """Delete a folder so that a crash midway leaves only a temporary name, never half of something."""
    doomed = path.with_name(f"{TEMPORARY}removed-{path.name}")
    path.rename(doomed)
    _delete(doomed)


def _delete(path: Path) -> None:
    """A folder with all that is in it; of a link the link alone."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def move_over(new: Path, path: Path) -> None:
    """Make a folder appear at `path`; one that is there is gone for no longer than the time between two renames."""
    doomed = path.with_name(f"{TEMPORARY}removed-{path.name}")
    had_one = path.exists()
    if had_one:
        path.rename(doomed)
    new.rename(path)
    sync(path.parent)
    if had_one:
        _delete(doomed)


def remove_leftovers(folder: Path, prefix: str = TEMPORARY) -> None:
    """Delete what interrupted writers left in a folder; only the holder of its lock may call this."""
    if not folder.is_dir():
        return
    for path in folder.glob(f"{prefix}*"):
        _delete(path)


def partial_prefix(path: Path) -> str:
    """How the names of unfinished folders for `path` begin."""
    return f".{path.name}.partial-"


def require_free(path: Path) -> None:
    """A new folder never replaces anything: `path` must not exist, or be an empty folder."""
    if path.is_symlink():
        raise ConfigError(f"{path} is a symbolic link, and a folder cannot take its place", "choose another --out")
    if path.is_dir() and not any(path.iterdir()):
        return
    if path.exists():
        what = " and is not empty" if path.is_dir() else ""
        raise ConfigError(f"{path} exists already{what}", "remove it or choose another --out")


@contextmanager
def new_folder(path: Path, hint: str = HINT) -> Iterator[Path]:
    """A hidden sibling of `path` to fill, which becomes `path` as the block ends: all of it on the disk, or nothing."""
    require_free(path)
    with disk_errors(path, hint=hint):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=partial_prefix(path), dir=path.parent))
        partial.chmod(0o755)  # mkdtemp's 0700 would keep private what others may read
    try:
        yield partial
        with disk_errors(path, hint=hint):
            sync_tree(partial)
            _become(partial, path)
    finally:
        if partial.exists():
            shutil.rmtree(partial)


def _become(partial: Path, path: Path) -> None:
    try:
        partial.rename(path)
    except OSError:
        require_free(path)  # it appeared while this one was being written
        raise
    sync(path.parent)


@contextmanager
def resumable_folder(path: Path, hint: str = HINT) -> Iterator[Path]:
    """As `new_folder`, but what a kill, a signal or a full disk leaves is given to the next who asks for this path.

    Any other error removes it. One process at a time fills it; others get RunInUseError.
    """
    require_free(path)
    partial = path.with_name(f".{path.name}.unfinished")
    require_no_link(partial)
    with disk_errors(path, hint=hint):
        partial.mkdir(parents=True, exist_ok=True)
    for left in partial.rglob("*"):
        require_no_link(left)
    held = path.with_name(f"{partial.name}.lock")  # beside it: Windows moves no folder in which a file is open
    try:
        with lock(held, of=path):
            require_free(path)  # the holder of the lock may have finished it
            try:
                yield partial
                with disk_errors(path, hint=hint):
                    sync_tree(partial)
                    _become(partial, path)
            except DiskError:
                raise
            except Exception:
                shutil.rmtree(partial, ignore_errors=True)
                raise
    finally:
        if not partial.exists():
            held.unlink(missing_ok=True)  # closed by now: Windows deletes nothing that is open


@contextmanager
def lock(path: Path, *, wait: bool = False, of: Path | None = None) -> Iterator[str | None]:
    """Be the one process that holds the lock file `of` a path, by default its folder; yields whose a stale one was.

    Who does not wait gets RunInUseError, and nothing has changed. The kernel drops the lock of a process that dies, so
    a lock file that still names a process but is free is stale.
    """
    require_no_link(path)
    with disk_errors(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o644)
    try:
        holder = _take_lock(path, descriptor, wait, of or path.parent)
        with disk_errors(path):
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            os.write(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
        try:
            yield holder
        finally:
            with suppress(OSError):  # the lock itself goes with the descriptor; an old pid in the file is harmless
                os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def require_unlocked(path: Path) -> None:
    """Raise RunInUseError where some process holds the lock file; an absent one nobody holds."""
    if not path.is_file():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _take_lock(path, descriptor, wait=False, of=path.parent)
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock file."""
    try:
        require_unlocked(path)
    except RunInUseError:
        return True
    return False


def _take_lock(path: Path, descriptor: int, wait: bool, of: Path) -> str | None:
    """Lock the open lock file and return whom its content names; closing the descriptor unlocks it."""
    holder = None
    with suppress(PermissionError):  # Windows lets nobody else read what is locked
        holder = _describe_holder(os.read(descriptor, 4096))
    try:
        is_ours = lock_descriptor(descriptor, blocking=wait)
    except OSError as error:
        raise DiskError(
            f"cannot lock {path}: {error.strerror}", hint="choose an --out on a disk that supports flock"
        ) from error
    if not is_ours:
        raise RunInUseError(
            f"{of} is being written by {holder or 'another process'}",
            hint="wait for it to end, stop it, or choose another --out",
        )
    return holder


def _describe_holder(content: bytes) -> str | None:
    try:
        owner = json.loads(content)
        return f"process {owner['pid']} on {owner['host']}"
    except (ValueError, KeyError, TypeError):
        return None


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return value


def _errno(error: OSError | SafetensorError) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    found = _OS_ERROR.search(str(error))
    return int(found.group(1)) if found else None
