"""How far a long command is: a bar on a terminal, a line now and then in a log; both on stderr."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from transnormer.cli.verbosity import is_quiet

SECONDS_BETWEEN_LINES = 10.0


class BytesProgress:
    """Called with a stage, the bytes done of it and their total; the first call of a stage says where it begins."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, soft_wrap=True, highlight=False)
        columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
        self._bar = Progress(
            *columns,
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal or is_quiet(),
        )
        self._task: TaskID | None = None
        self._stage = ""
        self._began = self._spoke = 0.0
        self._first = 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._began, self._spoke, self._first = stage, now, now, done
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(stage, total=total)
        assert self._task is not None
        self._bar.update(self._task, completed=done)
        if not self._console.is_terminal and not is_quiet() and now - self._spoke >= SECONDS_BETWEEN_LINES:
            self._spoke = now
            rate = (done - self._first) / (now - self._began)
            left = f", {(total - done) / rate:,.0f} s left" if rate else ""
            self._console.print(
                f"{stage}: {done / 1e6:,.1f} of {total / 1e6:,.1f} MB, {rate / 1e6:.2f} MB/s{left}", markup=False
            )
