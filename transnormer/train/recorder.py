"""The record of a run as it happens: every line goes to the journal, to TensorBoard if asked for, and to the screen."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transnormer.config.schema import RunConfig
from transnormer.errors import ConfigError
from transnormer.journal import Journal
from transnormer.train import estimate
from transnormer.train.progress import ProgressDisplay
from transnormer.train.run_folder import RunFolder


class Recorder:
    """Open on the main process; on all others every method does nothing."""

    def __init__(self, config: RunConfig, folder: RunFolder, *, active: bool, show: bool | None) -> None:
        self._config, self._folder, self._show = config, folder, show
        self._journal = Journal(folder.journal_file) if active else None
        self._display: ProgressDisplay | None = None
        self._tensorboard: Any = None
        self._began_at = 0
        self._warned = False

    def begin(self, step: int, evaluated: int) -> None:
        """Start, or start again, after `step`: later lines of the journal are about steps that will be made anew."""
        if self._journal is None:
            return
        self._journal.rewind(step, evaluated)
        self._close_views()
        self._began_at = step
        self._display = ProgressDisplay(self._config.train.steps, step, self._show)
        if self._config.train.tensorboard:
            self._tensorboard = open_tensorboard(self._folder, step)

    def step(self, line: dict[str, Any]) -> None:
        """A step that is shown, but not kept."""
        if self._display:
            self._display.step(line)
            self._warn_once(line["step"])

    def train(self, line: dict[str, Any]) -> None:
        """A logged step."""
        self._append({"kind": "train", **line})
        if self._display:
            self._display.train(line)
            self._warn_once(line["step"])
        self._scalars(
            "train", line["step"], {key: line[key] for key in ("loss", "lr", "grad_norm", "tokens_per_second")}
        )

    def evaluation(self, step: int, split: str, metrics: dict[str, float]) -> None:
        """An evaluation."""
        line = {"kind": "eval", "step": step, "split": split, "metrics": metrics}
        self._append(line)
        if self._display:
            self._display.evaluation(line)
        self._scalars(split, step, metrics)

    def event(self, kind: str, text: str, **facts: Any) -> None:
        """Anything else worth a line: it stays in the journal whatever happens to the steps around it."""
        self._append({"kind": kind, **facts, "time": time.time(), "text": text})
        if self._display:
            self._display.say(text)

    def say(self, text: str) -> None:
        """A line for whoever watches; the journal has no need of it."""
        if self._display:
            self._display.say(text)

    @contextmanager
    def preparing(self, what: str | None) -> Iterator[None]:
        """Work before the first step, told if it takes long: before and, in the journal, after; no time of a step."""
        if what is None:
            yield
            return
        if self._display:
            self._display.say(f"{what} ...")
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        self.event("prepared", f"{what}: {seconds:.0f} s", seconds=seconds)
        if self._display:
            self._display.leave_out(seconds)

    def sync(self) -> None:
        """Wait until the journal is on the disk."""
        if self._journal:
            self._journal.sync()

    def close(self) -> None:
        """Close the files and leave the terminal as it was."""
        self._close_views()
        if self._journal:
            self._journal.close()

    def _warn_once(self, step: int) -> None:
        """Say so, once it is known, if the run has more than an hour to go."""
        if self._warned or self._display is None:
            return
        seconds_a_step = self._display.seconds_a_step(step)
        if estimate.is_sure(step - self._began_at, seconds_a_step):
            self._warned = True
            if text := estimate.warning(self._config, self._folder.path, step, seconds_a_step):
                self._display.say(text)

    def _append(self, line: dict[str, Any]) -> None:
        if self._journal:
            self._journal.append(line)

    def _scalars(self, group: str, step: int, values: dict[str, float]) -> None:
        if self._tensorboard:
            for name, value in values.items():
                self._tensorboard.add_scalar(f"{group}/{name}", value, step)

    def _close_views(self) -> None:
        if self._display:
            self._display.close()
        if self._tensorboard:
            self._tensorboard.close()


def require_tensorboard() -> Any:
    """TensorBoard's writer class, or an error that says how to install it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError(
            "train.tensorboard is true, but TensorBoard is not installed",
            hint='pip install "transnormer[tensorboard]", or train.tensorboard=false',
        ) from error
    return SummaryWriter


def open_tensorboard(folder: RunFolder, step: int) -> Any:
    """An event writer under which everything after `step` of an earlier process is hidden."""
    return require_tensorboard()(str(folder.tensorboard), purge_step=step + 1)
