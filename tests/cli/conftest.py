"""The command, run in this process, and one tiny finished run for the verbs that read one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from transnormer.cli.app import main

TINY = [
    "model.hidden_size=16",
    "model.num_hidden_layers=2",
    "model.num_attention_heads=2",
    "data.sequence_length=32",
    "data.eval_windows=4",
    "train.device=cpu",
    "train.steps=4",
    "train.batch_size=2",
    "train.eval_every=2",
    "train.save_every=2",
    "optim.warmup_steps=0",
]


@pytest.fixture(scope="session")
def tiny() -> list[str]:
    """Overrides that make any recipe take a second."""
    return TINY


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """cli("train", "demo", ...) -> exit code, stdout, stderr; an unexpected exception comes through."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str | Path) -> Outcome:
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return Outcome(int(exit_.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def silent_cli() -> Callable[..., None]:
    """The command where no output is wanted, for fixtures of a longer life."""
    return run_main


def run_main(*arguments: str | Path) -> None:
    """The command where no output is wanted."""
    with pytest.raises(SystemExit) as exit_:
        main([str(argument) for argument in arguments])
    assert not exit_.value.code


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte store of a small text."""
    folder = tmp_path_factory.mktemp("text")
    words = ["the", "cat", "sat", "on", "a", "mat", "naïve", "and", "looked"]
    lines = [" ".join(words[(i * j) % len(words)] for j in range(1, 9)) for i in range(300)]
    (folder / "story.txt").write_text("\n".join(lines))
    run_main("data", "prepare", "--text", folder / "*.txt", "--tokenizer", "byte", "--out", folder / "store")
    return folder / "store"


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Path:
    """A finished run of a two-layer T2."""
    run = tmp_path_factory.mktemp("runs") / "run"
    run_main("train", "demo", "--out", run, f"data.store={store}", *TINY)
    return run


@pytest.fixture(scope="session")
def masked_run(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Path:
    """A finished run of a masked language model."""
    run = tmp_path_factory.mktemp("runs") / "masked"
    run_main("train", "demo", "--out", run, "task=masked_lm", f"data.store={store}", *TINY)
    return run
