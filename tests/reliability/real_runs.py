"""Real `transnormer` processes that tests can start, signal and kill, and what a run must look like afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tiny_run import evaluations, journal_lines, losses, weights_hash

_HERE = Path(__file__).parent
Fault = tuple[str, dict[str, Any]]


class Forks:
    """The fork server, seen from the tests."""

    def __init__(self, logs: Path) -> None:
        path = os.pathsep.join(str(folder) for folder in (_HERE, _HERE.parent, _HERE.parent.parent))
        self._log = logs / "log.txt"
        self._server = subprocess.Popen(
            [sys.executable, str(_HERE / "fork_server.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )

    def start(
        self, *arguments: str | Path, fault: Fault | None = None, environment: dict[str, str] | None = None
    ) -> int:
        """Start a command and return its pid."""
        self._log.unlink(missing_ok=True)
        return self._start(arguments, fault, environment)

    def _start(self, arguments: Sequence[str | Path], fault: Fault | None, environment: dict[str, str] | None) -> int:
        words = [str(argument) for argument in arguments]
        request = {"arguments": words, "log": str(self._log), "fault": fault, "environment": environment or {}}
        return int(self._ask(request))

    def start_ranks(self, *arguments: str | Path, fault: Fault | None = None, count: int = 2) -> list[int]:
        """Start a command as the ranks of one run, as torchrun does, and return their pids."""
        # Kept, so that the system gives the port to nobody else; the ranks may share what does not listen.
        self._port = socket.socket()
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port.bind(("127.0.0.1", 0))
        port = str(self._port.getsockname()[1])
        sizes = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
        shared = {**sizes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
        self._log.unlink(missing_ok=True)  # once: the first rank may write to it before the second one starts
        return [self._start(arguments, fault, environment) for environment in ranks]

    def wait(self, pid: int) -> int:
        """The exit code of a command, -n if signal n ended it."""
        answer = self._ask({"wait": pid})
        assert answer != "hung"
        return int(answer)

    def wait_for_stop(self, pid: int) -> None:
        """Until a command has stopped itself, as a fault told it to."""
        assert self._ask({"wait_for_stop": pid}) == "stopped", self.output

    def run(self, *arguments: str | Path, fault: Fault | None = None) -> int:
        """Run a command to its end."""
        return self.wait(self.start(*arguments, fault=fault))

    @property
    def output(self) -> str:
        """What the last command printed."""
        return self._log.read_text()

    def close(self) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait()

    def _ask(self, request: dict[str, Any]) -> str:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return self._server.stdout.readline().strip()


@dataclass(frozen=True)
class Case:
    """A recipe, the undisturbed run of it, and a folder for a run that will be disturbed."""

    forks: Forks
    recipe: Path
    undisturbed: Path
    run: Path

    def train(self, fault: Fault | None = None) -> int:
        return self.forks.run("train", self.recipe, "--out", self.run, fault=fault)

    def resume(self, fault: Fault | None = None) -> int:
        return self.forks.run("resume", self.run, fault=fault)

    def require_equal_end(self) -> None:
        """The run has ended as if nothing had happened: weights, every logged loss and score, no debris."""
        assert weights_hash(self.run) == weights_hash(self.undisturbed)
        assert losses(self.run) == losses(self.undisturbed)
        assert evaluations(self.run) == evaluations(self.undisturbed)
        assert [path for path in self.run.rglob("*") if path.name.startswith(".tmp-")] == []

    def require_same_curve(self) -> None:
        """The run has learned what the undisturbed one has, but for the order in which processes add up."""
        one, two = losses(self.undisturbed), losses(self.run)
        assert [step for step, _ in two] == [step for step, _ in one]
        assert [loss for _, loss in two] == pytest.approx([loss for _, loss in one], rel=1e-6)
        for line, same in zip(*(journal_lines(run, "train") for run in (self.run, self.undisturbed)), strict=True):
            assert line["layer_grad_norms"] == pytest.approx(same["layer_grad_norms"], rel=1e-5)
        one_evals, two_evals = evaluations(self.undisturbed), evaluations(self.run)
        assert len(one_evals) == len(two_evals) == 2
        for (_, metrics), (_, expected) in zip(two_evals, one_evals, strict=True):
            assert metrics == pytest.approx(expected, rel=1e-5)


def wait_until(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    """Poll until the condition holds, however busy the machine is."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.002)


def fingerprint(run: Path) -> dict[str, str]:
    """Every file of a run with a hash of its content."""
    return {
        path.relative_to(run).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(run.rglob("*"))
        if path.is_file()
    }
