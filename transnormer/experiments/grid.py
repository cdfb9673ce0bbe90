"""The cells of a grid, several at once, until all are done, time is up, or a signal asks to stop."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from types import FrameType
from typing import Any, Protocol

from transnormer.errors import Preempted
from transnormer.experiments.budget import Budget
from transnormer.experiments.cells import Cell
from transnormer.experiments.pack import Ended, Pack, Running

_PAUSE = 0.2  # seconds between two looks at the processes
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Status(StrEnum):
    """Where a cell stands."""

    waiting = "waiting"
    running = "running"
    finished = "finished"
    failed = "failed"
    stopped = "stopped"


@dataclass
class Square:
    """A cell as it is shown: its status, its score in percent, and its process while it runs."""

    cell: Cell
    status: Status = Status.waiting
    score: float | None = None
    running: Running | None = None


class Display(Protocol):
    """What a person sees of a grid."""

    def say(self, text: str) -> None:
        """Print a line."""

    def update(self, squares: Sequence[Square]) -> None:
        """Show how far the cells have come; called several times a second."""


@dataclass
class Interrupts:
    """SIGTERM and SIGINT, counted while the block lasts: the second one means at once."""

    count: int = 0
    last: signal.Signals | None = None
    _previous: dict[signal.Signals, Any] = field(default_factory=dict)

    @contextmanager
    def caught(self) -> Iterator[Interrupts]:
        """Handle them in here; Python allows that in the main thread only."""
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        try:
            yield self
        finally:
            for number, handler in self._previous.items():
                signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        self.count += 1
        self.last = signal.Signals(number)


@dataclass
class Grid:
    """All squares in the order in which they are to be started.

    `on_finished` keeps the result of a cell and returns its score; without a `budget` there is time for all.
    """

    squares: list[Square]
    pack: Pack
    display: Display
    on_finished: Callable[[Ended], float]
    budget: Budget | None = None
    interrupts: Interrupts = field(default_factory=Interrupts)
    _told: int = 0  # how often the processes have been told to stop

    def run(self) -> None:
        """Until nothing runs and nothing can be started any more; cells that fail do not stop the others."""
        with self.interrupts.caught(), self.pack:
            while True:
                self._stop_if_asked()
                if not self._told:
                    self._fill_the_pack()
                self.display.update(self.squares)
                if not self.pack.running:
                    return
                time.sleep(_PAUSE)
                for ended in self.pack.poll():
                    self._take(ended)
                if self.budget:
                    self.budget.speeds.see(self.pack.running)

    def those(self, *statuses: Status) -> list[Cell]:
        """The cells of these statuses."""
        return [square.cell for square in self.squares if square.status in statuses]

    @property
    def time_is_up(self) -> bool:
        """Whether the budget is used up."""
        return self.budget is not None and self.budget.seconds_left <= 0

    @property
    def _running(self) -> str:
        return ", ".join(running.cell.name for running in self.pack.running) or "nothing"

    def _stop_if_asked(self) -> None:
        """Pass every signal on once; the end of the time is one of them, but never the second."""
        if self._told < self.interrupts.count:
            name = self.interrupts.last.name if self.interrupts.last else "a signal"
            how = "saving" if self._told == 0 else "ending"
            self.display.say(f"{name}: {how} what runs: {self._running}")
        elif self._told == 0 and self.time_is_up:
            if self.pack.running:
                self.display.say(f"time is up: saving what runs: {self._running}")
        else:
            return
        self._told += 1
        self.pack.stop()

    def _fill_the_pack(self) -> None:
        while not self.pack.is_full and (square := self._next()):
            self.pack.start(square.cell)
            square.status, square.running = Status.running, self.pack.running[-1]
            how = "resumed" if square.running.first_step else "started"
            self.display.say(f"{square.cell.name}: {how}")

    def _next(self) -> Square | None:
        """The first waiting cell that is expected to end in time; if there is none, the first that can make a step."""
        waiting = [square for square in self.squares if square.status is Status.waiting]
        budget = self.budget
        if budget is None:
            return next(iter(waiting), None)
        fitting = (square for square in waiting if budget.has_room_for(square.cell))
        return next(fitting, waiting[0] if waiting and budget.allows_a_start else None)

    def _take(self, ended: Ended) -> None:
        """Note how a cell ended; a process that is ended while it still loads its packages has nothing to save."""
        square = next(square for square in self.squares if square.cell is ended.cell)
        square.running = None
        name = ended.cell.name
        if ended.code == 0:
            square.score, square.status = self.on_finished(ended), Status.finished
            self.display.say(f"{name}: test accuracy {square.score:.2f} after {ended.seconds / 60:.1f} min")
        elif ended.code == Preempted.exit_code or (self._told and _is_by_signal(ended.code)):
            square.status = Status.stopped
            saved = ended.cell.saved_step()
            self.display.say(f"{name}: stopped, " + (f"saved after step {saved:,}" if saved else "nothing to save yet"))
        else:
            square.status = Status.failed
            how = f"signal {-ended.code}" if ended.code < 0 else f"exit code {ended.code}"
            words = "\n".join(f"    {line}" for line in ended.cell.last_words())
            self.display.say(f"{name}: failed ({how}); the end of {ended.cell.log_file}:\n{words}")


def _is_by_signal(code: int) -> bool:
    return any(code in (-number, 128 + number) for number in _SIGNALS)
