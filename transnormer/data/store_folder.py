"""Writing a store so that it exists whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from transnormer.data.manifest import FILE_NAME, AnyManifest, to_json
from transnormer.errors import ConfigError, DiskError


class Terminated(SystemExit):
    """SIGTERM arrived while a store was being written, and what there was of it has been removed.

    Not an Exception, so that no handler takes it for a fault of the data; the exit code is what shells call SIGTERM.
    """


class StoreFolder(ABC):
    """Context manager: files go into a hidden sibling folder, which is renamed to `path` once all is on disk.

    Should the body raise, or the process die, nothing appears at `path`; SIGTERM raises `Terminated` in the body.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @abstractmethod
    def finish(self) -> AnyManifest:
        """Complete all files in `partial`, wait until they are on the disk, and describe them."""

    @abstractmethod
    def close(self) -> None:
        """Let go of open files, whatever happened."""

    def __enter__(self) -> Self:
        require_free(self.path)
        with disk_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.partial = Path(tempfile.mkdtemp(prefix=partial_prefix(self.path), dir=self.path.parent))
            self.partial.chmod(0o755)  # mkdtemp's 0700 would keep a shared store private
        self._signals = ExitStack()
        self._signals.enter_context(_sigterm_raises())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._signals:
            try:
                if kind is None:
                    with disk_errors(self.path):
                        self._commit()
            finally:
                self.close()
                if self.partial.exists():
                    shutil.rmtree(self.partial)

    def _commit(self) -> None:
        manifest = self.finish()
        with (self.partial / FILE_NAME).open("w", encoding="utf-8") as file:
            file.write(to_json(manifest))
            flush(file)
        sync_folder(self.partial)
        try:
            self.partial.rename(self.path)
        except OSError as problem:
            if problem.errno in (errno.ENOTEMPTY, errno.EEXIST):
                require_free(self.path)  # it appeared while this one was being written
            raise
        sync_folder(self.path.parent)


def require_free(path: Path) -> None:
    """A store never replaces anything: `path` must not exist, or be an empty folder."""
    if path.is_dir() and not any(path.iterdir()):
        return
    if path.exists():
        raise ConfigError(f"{path} exists already", "remove it or choose another --out")


def partial_prefix(path: Path) -> str:
    """How the names of unfinished stores for `path` begin."""
    return f".{path.name}.partial-"


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turns the operating system's refusal to write into a DiskError."""
    try:
        yield
    except OSError as problem:
        hint = "free some space or choose another folder"
        raise DiskError(f"cannot write the store {path}: {problem.strerror or problem}", hint) from problem


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Lets SIGTERM unwind the program as Ctrl-C does, instead of ending it with all that it would leave behind."""
    # Python allows handlers in the main thread only; where somebody else handles SIGTERM, that is for them to decide.
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _raise_terminated(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # `timeout` sends it twice, and the second must not stop the removing
    raise Terminated(128 + number)


def flush(file: Any) -> None:
    """Waits until a file is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Waits until the names in a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
