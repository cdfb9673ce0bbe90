"""What a person sees while a model trains: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn


class ProgressDisplay:
    """`show` None: a bar if the output is a terminal, else lines; True: a bar in any case; False: nothing."""

    def __init__(self, total_steps: int, step: int, show: bool | None) -> None:
        self._total = total_steps
        self._first_step = step
        self._began = time.perf_counter()
        self._quiet = show is False
        self._console = Console(quiet=self._quiet, force_terminal=True if show else None, soft_wrap=True)
        self._bar: Progress | None = None
        if self._console.is_terminal and not self._quiet:
            columns = (
                TextColumn("step {task.completed}/{task.total}"),
                BarColumn(16),
                TextColumn("{task.description}"),
            )
            self._bar = Progress(*columns, console=self._console)
            self._task = self._bar.add_task("", total=total_steps, completed=step)
            self._bar.start()

    def step(self, line: dict[str, Any]) -> None:
        """Show a step between two lines of the journal: a bar always, a log the very first one, with an estimate."""
        if self._bar or line["step"] == self._first_step + 1:
            self.train(line)

    def train(self, line: dict[str, Any]) -> None:
        """Show a train line of the journal."""
        numbers = (
            f"loss {line['loss']:.4f}  lr {line['lr']:.2e}  grad norm {line['grad_norm']:.2f}  "
            f"{line['tokens_per_second']:,.0f} tokens/s  {self._time_left(line['step'])} left"
        )
        if self._bar:
            self._bar.update(self._task, completed=line["step"], description=numbers)
        else:
            self.say(f"step {line['step']}/{self._total}  {numbers}")

    def evaluation(self, line: dict[str, Any]) -> None:
        """Show an eval line of the journal."""
        numbers = "  ".join(f"{name} {value:.5g}" for name, value in line["metrics"].items())
        self.say(f"step {line['step']}/{self._total}  {line['split']}: {numbers}")

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

    def _time_left(self, step: int) -> str:
        """From the wall clock of this process, evaluations and checkpoints included."""
        per_step = (time.perf_counter() - self._began) / max(step - self._first_step, 1)
        minutes, seconds = divmod(round(per_step * (self._total - step)), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
