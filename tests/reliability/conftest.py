"""Real processes to disturb, and the undisturbed run that they must equal in the end."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tiny_run import losses, tiny_config, tiny_store, weights_hash

from transnormer.config.load import dump_config

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

    def start(self, *arguments: str | Path, fault: Fault | None = None) -> int:
        """Start a command and return its pid."""
        self._log.unlink(missing_ok=True)
        words = [str(argument) for argument in arguments]
        return self._ask({"arguments": words, "log": str(self._log), "fault": fault})

    def wait(self, pid: int) -> int:
        """The exit code of a command, -n if signal n ended it."""
        return self._ask({"wait": pid})

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
        self._server.wait(timeout=30)

    def _ask(self, request: dict[str, Any]) -> int:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())


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
        """The run has ended as if nothing had happened: weights, every logged loss, no debris."""
        assert weights_hash(self.run) == weights_hash(self.undisturbed)
        assert losses(self.run) == losses(self.undisturbed)
        assert [path for path in self.run.rglob("*") if path.name.startswith(".tmp-")] == []


@pytest.fixture(scope="session")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in memory where there is one: killing a process leaves the same files there, and fsync costs nothing."""
    memory = Path("/dev/shm")
    if not (memory.is_dir() and os.access(memory, os.W_OK)):
        yield tmp_path_factory.mktemp("runs")
        return
    with tempfile.TemporaryDirectory(prefix="transnormer-", dir=memory) as folder:
        yield Path(folder)


@pytest.fixture
def scratch(memory: Path, request: pytest.FixtureRequest) -> Path:
    """An own folder for one test."""
    folder = memory / request.node.name
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def forks(memory: Path) -> Iterator[Forks]:
    forks = Forks(memory)
    yield forks
    forks.close()


@pytest.fixture(scope="session")
def recipe(memory: Path) -> Path:
    path = memory / "tiny.yaml"
    path.write_text(dump_config(tiny_config(tiny_store(memory), train__keep_last=1)))
    return path


@pytest.fixture(scope="session")
def undisturbed(forks: Forks, recipe: Path, memory: Path) -> Path:
    run = memory / "undisturbed"
    assert forks.run("train", recipe, "--out", run) == 0, forks.output
    return run


@pytest.fixture
def case(forks: Forks, recipe: Path, undisturbed: Path, scratch: Path) -> Case:
    return Case(forks, recipe, undisturbed, scratch / "run")


@pytest.fixture(scope="session")
def _stopped(forks: Forks, recipe: Path, memory: Path) -> Path:
    """A run with the checkpoints of steps 6 and 9 that was killed when it was about to save that of step 12."""
    run = memory / "stopped"
    arguments = ("train", recipe, "--out", run, "train.keep_last=2")
    fault = ("at_file_operation", {"run": str(run), "step": 12, "number": 0, "signals": [signal.SIGKILL]})
    assert forks.run(*arguments, fault=fault) == -signal.SIGKILL
    return run


@pytest.fixture
def stopped_case(case: Case, _stopped: Path) -> Case:
    """A case whose run is a copy of one that was killed after step 11, with checkpoints of steps 6 and 9."""
    shutil.copytree(_stopped, case.run)
    assert sorted(path.name for path in (case.run / "checkpoints").glob("step-*")) == ["step-00000006", "step-00000009"]
    return case


def wait_until(condition: Any, seconds: float = 30.0) -> None:
    """Poll until the condition holds."""
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
