"""A table to disturb in the making: its folders, and the command on them in this process or in one of its own."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import pytest
from job_client import request

from transnormer.cli.app import main

TINY = [
    "model.hidden_size=16",
    "model.intermediate_size=24",
    "optim.warmup_steps=1",
    "train.steps=4",
    "train.batch_size=4",
    "train.eval_every=2",
    "train.save_every=2",
    "train.log_every=1",
    "train.device=cpu",
]


def wait_until(condition: Callable[[], bool]) -> None:
    """However busy the machine is."""
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


@dataclass
class Command:
    """A command in a process of its own."""

    pid: int
    _replies: TextIO

    def wait(self) -> int:
        """Its exit code, -n if signal n ended it."""
        return int(self._replies.readline())


@dataclass
class ReproduceCase:
    """Folders for one table and the command on them; `out` and `err` are of the last command."""

    folder: Path
    data: Path
    socket: str
    read: Callable[[], tuple[str, str]]
    out: str = ""
    err: str = ""
    table: str = "lra"
    options: list[str] = field(default_factory=lambda: ["--methods", "t2,vanilla", "--tasks", "text"])

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def record(self, name: str) -> dict[str, Any]:
        """What the table has of a job."""
        return json.loads((self.results / f"{name}.json").read_text())

    def arguments(self, *more: str) -> list[str]:
        places = ["--runs", str(self.runs), "--results", str(self.results), "--data", str(self.data)]
        return ["reproduce", self.table, *self.options, *places, *TINY, *more]

    def run(self, *more: str) -> int:
        """The command in this process; an unexpected exception comes through."""
        self.read()
        with pytest.raises(SystemExit) as exit_:
            main(self.arguments(*more))
        self.out, self.err = self.read()
        return int(exit_.value.code or 0)

    def start(self, *more: str) -> Command:
        """The command in a process of its own."""
        replies = request(self.socket, self.arguments(*more), dict(os.environ)).makefile()
        return Command(int(replies.readline()), replies)
