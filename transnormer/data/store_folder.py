"""Writing a store so that it exists whole or not at all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from transnormer.data.manifest import FILE_NAME, AnyManifest, to_json
from transnormer.files import disk_errors, new_folder, write_text
from transnormer.signals import sigterm_raises

_HINT = "free some space or choose another folder"


class StoreFolder(ABC):
    """Context manager: files go into a hidden sibling folder, which is renamed to `path` once all is on disk.

    Should the body raise, or the process die, nothing appears at `path`; SIGTERM raises `Terminated` in the body.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @abstractmethod
    def finish(self) -> AnyManifest:
        """Complete all files in `partial` and describe them."""

    @abstractmethod
    def close(self) -> None:
        """Let go of open files, whatever happened."""

    def writing(self) -> AbstractContextManager[None]:
        """What the disk refuses in this block is a DiskError."""
        return disk_errors(self.path, hint=_HINT)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(sigterm_raises())
            self.partial = stack.enter_context(new_folder(self.path, _HINT))
            stack.callback(self.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._stack.__exit__(kind, error, trace)
            return
        with self._stack, self.writing():
            self._commit()

    def _commit(self) -> None:
        write_text(self.partial / FILE_NAME, to_json(self.finish()), _HINT)
