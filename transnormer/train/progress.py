"""What a person sees while a model trains: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from transnormer.journal import worth_reading

_BAR_WIDTH = 16
_SECONDS_SILENT = 30.0  # in a log, before a step between two lines of the journal is shown


class ProgressDisplay:
    """`show` None: a bar if the output is a terminal, else lines; True: a bar in any case; False: nothing."""

    def __init__(self, total_steps: int, step: int, show: bool | None) -> None:
        self._total = total_steps
        self._first_step = step
        self._began = time.perf_counter()
        self._quiet = show is False
        self._console = Console(quiet=self._quiet, force_terminal=True if show else None, soft_wrap=True)
        self._bar: Progress | None = None
        self._shown = 0.0  # when a log last had a line
        if self._console.is_terminal and not self._quiet:
            columns = (
                TextColumn("step {task.completed}/{task.total}"),
                BarColumn(_BAR_WIDTH),
                TextColumn("{task.description}"),
            )
            self._bar = Progress(*columns, console=self._console)
            self._task = self._bar.add_task("first step ...", total=total_steps, completed=step)
            self._bar.start()

    def step(self, line: dict[str, Any]) -> None:
        """Show a step between two lines of the journal: a bar always, a log the first one and where steps are slow."""
        if self._bar or self._first_step + 1 == line["step"] or time.perf_counter() - self._shown > _SECONDS_SILENT:
            self.train(line)

    def train(self, line: dict[str, Any]) -> None:
        """Show a train line of the journal."""
        step = f"step {line['step']}/{self._total}"
        # What matters most comes first: a narrow terminal has no room for all.
        numbers = [
            f"loss {line['loss']:.4f}",
            f"{in_hours(self.seconds_left(line['step']))} left",
            f"{line['tokens_per_second']:,.0f} tokens/s",
            f"lr {line['lr']:.2e}",
            f"grad norm {line['grad_norm']:.2f}",
        ]
        if self._bar:
            room = self._console.width - len(step) - _BAR_WIDTH - 2
            while len("  ".join(numbers)) > room and len(numbers) > 1:
                numbers.pop()
            self._bar.update(self._task, completed=line["step"], description="  ".join(numbers))
        else:
            self._shown = time.perf_counter()
            self.say("  ".join([step, *numbers]))

    def evaluation(self, line: dict[str, Any]) -> None:
        """Show an eval line of the journal."""
        self.say(f"step {line['step']}/{self._total}  {line['split']}: {in_a_line(line['metrics'])}")

    def say(self, text: str) -> None:
        """Print one line of text, above the bar if there is one."""
        self._console.print(text, markup=False, highlight=False)

    def leave_out(self, seconds: float) -> None:
        """Do not count so many of the seconds so far as time of steps."""
        self._began += seconds

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar:
            self._bar.stop()

    def seconds_left(self, step: int) -> float:
        """By the wall clock of this process, evaluations and checkpoints included."""
        return self.seconds_a_step(step) * (self._total - step)

    def seconds_a_step(self, step: int) -> float:
        """Since this process began."""
        return (time.perf_counter() - self._began) / max(step - self._first_step, 1)


def in_hours(seconds: float) -> str:
    """1:02:03, or 2:03 where it is less than an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def in_a_line(metrics: dict[str, float]) -> str:
    """Scores for people."""
    return "  ".join(f"{name} {value:.5g}" for name, value in worth_reading(metrics).items())
