"""Real processes to disturb, and the undisturbed run that they must equal in the end."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_runs import Case, Forks
from tiny_run import tiny_config, tiny_store

from transnormer.config.load import dump_config


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
