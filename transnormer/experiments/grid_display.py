"""What a person sees of a grid: a table that lives on a terminal, plain lines in a log."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from transnormer.experiments.grid import Square, Status

_LINE_EVERY = 30.0  # seconds, in a log
_TABLE_EVERY = 0.5  # seconds, on a terminal


class GridDisplay:
    """Context manager. Methods down, tasks across; a log has the table once, when all is over."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(soft_wrap=True, highlight=False, emoji=False)
        self._live: Live | None = None
        self._next = time.monotonic() + _LINE_EVERY
        self._squares: Sequence[Square] = ()

    def __enter__(self) -> GridDisplay:
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
        elif kind is None and self._squares:
            Console(file=self._console.file, highlight=False, emoji=False, width=1000).print(self._view())

    def say(self, text: str) -> None:
        """Print a line, above the table if there is one."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def update(self, squares: Sequence[Square]) -> None:
        """Show how far the cells have come, now and then."""
        self._squares = squares
        if time.monotonic() < self._next:
            return
        if self._live:
            self._next = time.monotonic() + _TABLE_EVERY
            self._live.update(self._view(), refresh=True)
        else:
            self._next = time.monotonic() + _LINE_EVERY
            self.say(progress_line(squares))

    def _view(self) -> Group:
        columns, rows = as_rows(self._squares)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for index, column in enumerate(columns):
            table.add_column(column, no_wrap=index == 0, style="bold" if index == 0 else None)
        for row in rows:
            table.add_row(*row)
        return Group(table, Text(_counts(self._squares)))


def as_rows(squares: Sequence[Square]) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of the table; a seed has rows of its own where there are several."""
    tasks = list(dict.fromkeys(square.cell.task for square in squares))
    seeds = {square.cell.seed for square in squares}
    by_place = {(square.cell.method, square.cell.seed, square.cell.task): square for square in squares}
    rows = []
    for method, seed in dict.fromkeys((square.cell.method, square.cell.seed) for square in squares):
        label = method if len(seeds) == 1 else f"{method}, seed {seed}"
        rows.append([label, *(in_short(by_place[method, seed, task]) for task in tasks)])
    return ["method", *tasks], rows


def in_short(square: Square) -> str:
    """A cell of the table."""
    running = square.running
    if square.status is Status.finished:
        return f"{square.score:.2f}"
    if square.status is not Status.running or running is None:
        return square.status.value
    if running.step is None:
        return "starting"
    if running.step == square.cell.steps:
        return "testing"
    text = f"{running.step:,}/{square.cell.steps:,}"
    if running.rate is None or running.seconds_left is None:
        return text
    return f"{text}  {_speed(running.rate)}  {running.seconds_left / 60:.1f} min"


def progress_line(squares: Sequence[Square]) -> str:
    """All that happens, in one line of a log."""
    running = [f"{square.cell.name} {in_short(square)}" for square in squares if square.status is Status.running]
    return "; ".join([_counts(squares), *running])


def _counts(squares: Sequence[Square]) -> str:
    counts = Counter(square.status for square in squares)
    parts = [
        f"{counts[status]} {status.value}" for status in Status if counts[status] and status is not Status.finished
    ]
    return ", ".join([f"{counts[Status.finished]} of {len(squares)} finished", *parts])


def _speed(rate: float) -> str:
    return f"{rate:.0f}/s" if rate >= 10 else f"{rate:.2g}/s"
