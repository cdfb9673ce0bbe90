"""What a person sees of the jobs: a table that lives on a terminal, plain lines in a log."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from transnormer.experiments.job import Job
from transnormer.experiments.record import Record
from transnormer.experiments.worker_pool import Worker

_LINE_EVERY = 30.0  # seconds, in a log
_TABLE_EVERY = 0.5  # seconds, on a terminal


class State(StrEnum):
    """Where a job stands."""

    waiting = "waiting"
    running = "running"
    finished = "finished"
    failed = "failed"
    stopped = "stopped"
    blocked = "not run"  # its parent failed


@dataclass
class JobStatus:
    """A job as it is shown: where it stands, its process while it runs, and its record once it is finished."""

    job: Job
    state: State = State.waiting
    record: Record | None = None
    running: Worker | None = None


class JobDisplay:
    """Context manager. Rows and columns are those of the experiment; a log has the table once, when all is over."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(soft_wrap=True, highlight=False, emoji=False)
        self._live: Live | None = None
        self._next = time.monotonic() + _LINE_EVERY
        self._statuses: Sequence[JobStatus] = ()

    def __enter__(self) -> JobDisplay:
        if self._console.is_terminal:
            # Refreshed by `update` alone: a process that starts others should have no threads of its own.
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
            self._next = 0.0
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.update(self._view(), refresh=True)
            self._live.stop()
        elif kind is None and self._statuses:
            Console(file=self._console.file, highlight=False, emoji=False, width=1000).print(self._view())

    def say(self, text: str) -> None:
        """Print a line, above the table if there is one."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def update(self, statuses: Sequence[JobStatus]) -> None:
        """Show how far the jobs have come, now and then."""
        self._statuses = statuses
        if time.monotonic() < self._next:
            return
        if self._live:
            self._next = time.monotonic() + _TABLE_EVERY
            self._live.update(self._view(), refresh=True)
        else:
            self._next = time.monotonic() + _LINE_EVERY
            self.say(progress_line(statuses))

    def _view(self) -> Group:
        columns, rows = as_rows(self._statuses)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for index, column in enumerate(columns):
            table.add_column(column, no_wrap=index == 0, style="bold" if index == 0 else None)
        for row in rows:
            table.add_row(*row)
        return Group(table, Text(f"{_counts(self._statuses)}{_legend(self._statuses)}"))


def as_rows(statuses: Sequence[JobStatus]) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of the table; a seed has rows of its own where there are several."""
    columns = list(dict.fromkeys(status.job.column for status in statuses))
    seeds = {status.job.config.seed for status in statuses}
    by_place = {(status.job.row, status.job.config.seed, status.job.column): status for status in statuses}
    rows = []
    for row, seed in dict.fromkeys((row, seed) for row, seed, _ in by_place):
        label = row if len(seeds) == 1 else f"{row}, seed {seed}"
        found = (by_place.get((row, seed, column)) for column in columns)
        rows.append([label, *(in_short(status) if status else "" for status in found)])
    return ["method", *columns], rows


def in_short(status: JobStatus) -> str:
    """A job in the table."""
    running = status.running
    if status.record:
        return f"{status.record.score:.2f}"
    if status.state is not State.running or running is None:
        return status.state.value
    if running.step is None:
        return "starting"
    if running.step == status.job.steps:
        return "testing"
    text = f"{running.step:,}/{status.job.steps:,}"
    if running.rate is None or running.seconds_left is None:
        return text
    return f"{text}  {_speed(running.rate)}  {running.seconds_left / 60:.1f} min"


def progress_line(statuses: Sequence[JobStatus]) -> str:
    """All that happens, in one line of a log."""
    running = [f"{status.job.name} {in_short(status)}" for status in statuses if status.state is State.running]
    return "; ".join([_counts(statuses), *running])


def _counts(statuses: Sequence[JobStatus]) -> str:
    counts = Counter(status.state for status in statuses)
    parts = [f"{counts[state]} {state.value}" for state in State if counts[state] and state is not State.finished]
    return ", ".join([f"{counts[State.finished]} of {len(statuses)} finished", *parts])


def _legend(statuses: Sequence[JobStatus]) -> str:
    """What the figures of the finished are."""
    names = dict.fromkeys(status.record.score_name for status in statuses if status.record)
    return f" ({', '.join(names)})" if names else ""


def _speed(rate: float) -> str:
    return f"{rate:.0f}/s" if rate >= 10 else f"{rate:.2g}/s"
