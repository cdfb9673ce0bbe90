"""Settings for the whole suite: one thread per test process, no clocks, and uninitialised memory that shows itself."""

from __future__ import annotations

import os

# Several test processes share the machine; results must not depend on how many threads each one gets.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

_HERE = Path(__file__).parent
pytest_plugins = ["reliability_record"]

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in the background of a shell; tests send it
    signal.signal(signal.SIGINT, signal.default_int_handler)
# How long an example takes says something about who else uses the machine, not about the code.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def lra_store(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """lra_store("lra/text") -> a tiny store, made once."""
    from lra_files import SOURCES

    from transnormer.data.lra.prepare import prepare

    made: dict[str, Path] = {}

    def find(task: str) -> Path:
        if task not in made:
            folder = tmp_path_factory.mktemp("lra")
            made[task] = prepare(task, folder / "store", source=SOURCES[task](folder / "source"))
        return made[task]

    return find


@pytest.fixture(scope="session")
def glue_bpe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """vocab.json and merges.txt as GPT-2 has them, of a few hundred tokens."""
    from glue_files import write_bpe

    return write_bpe(tmp_path_factory.mktemp("bpe"))


@pytest.fixture(scope="session")
def glue_store(tmp_path_factory: pytest.TempPathFactory, glue_bpe: Path) -> Callable[[str], Path]:
    """glue_store("mnli") -> a tiny store, made once."""
    from glue_files import write_task

    from transnormer.data.glue.prepare import prepare

    made: dict[str, Path] = {}

    def find(task: str) -> Path:
        if task not in made:
            folder = tmp_path_factory.mktemp("glue")
            source = write_task(folder / "source", task)
            made[task] = prepare(f"glue/{task}", folder / task, source=source, tokenizer=f"roberta:{glue_bpe}")
        return made[task]

    return find


@pytest.fixture(scope="session")
def fork_server() -> Iterator[str]:
    """The socket of a process that forks real `transnormer` commands, without the imports of each."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "socket")  # noqa: PTH118 (short, for it must fit into an address)
        server = subprocess.Popen(
            [sys.executable, str(_HERE / "job_server.py"), path],
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield path
        server.terminate()
        server.wait()


@pytest.fixture(scope="session")
def forked_command(fork_server: str) -> tuple[str, ...]:
    """What stands in for `python -m transnormer`."""
    return (sys.executable, "-I", str(_HERE / "job_client.py"), fork_server)


@pytest.fixture
def poisoned_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.empty gives NaN, so that a read of memory nobody wrote reaches the result."""

    def poison(allocate):
        def allocate_poisoned(*args, **kwargs):
            tensor = allocate(*args, **kwargs)
            return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

        return allocate_poisoned

    # torch.device contexts remember the factory functions they redirect from their first use: not the poisoned ones.
    with torch.device("cpu"):
        torch.zeros(1)
    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, poison(getattr(torch, name)))
