"""What a person sees when something is wrong: one line, one hint, the right exit code; and tracebacks only for bugs."""

from __future__ import annotations

import errno
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from transnormer.cli.app import main
from transnormer.errors import (
    CheckpointError,
    DataError,
    DiskError,
    NonFiniteError,
    Preempted,
    RunInUseError,
    TransNormerError,
)


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["train", "dmo", "--out", "x"], "no recipe 'dmo'", "did you mean 'demo'?"),
        (["train", "demo", "--out", "x", "train.stepz=1"], "train.stepz: no such key", "did you mean 'train.steps'?"),
        (["train", "demo", "--out", "x", "model.preset=t3-tiny"], "unknown preset 't3-tiny'", "'t2-tiny'"),
        (["train", "demo", "--out", "x", "task=causal"], "task: unknown task 'causal'", "'causal_lm'"),
        (["train", "demo", "--out", "x", "model.mixers=[diag,nrm,norm,norm]"], "unknown mixer 'nrm'", "'norm'"),
        (["train", "demo", "--out", "x", "model.num_attention_heads=3"], "not a multiple", "divides"),
        (["train", "demo", "--out", "x", "data.store=nowhere"], "nowhere", "data prepare"),
        (["train", "demo", "--out", "x", "data.store=s", "data.source=x"], "data.source has no effect", "out, or set"),
        (["train", "lm/wikitext103", "--out", "x"], "the corpus 'wikitext103' needs", "data.source="),
        (["resume", "nowhere"], "nowhere does not exist", "transnormer train"),
        (["eval", "nowhere"], "nowhere does not exist", "transnormer train"),
        (["generate", "nowhere"], "nowhere does not exist", ""),
        (["export", "nowhere", "--out", "x"], "nowhere does not exist", ""),
        (["data", "info", "nowhere"], "nowhere", ""),
        (["data", "prepare", "--out", "x"], "nothing to prepare", "--text"),
        (["data", "prepare", "enwik9", "--out", "x"], "unknown corpus 'enwik9'", "'enwiki'"),
        (["data", "prepare", "python", "--text", "*.txt", "--out", "x"], "both given", "leave one"),
        (["data", "prepare", "--text", "none/*.txt", "--out", "x"], "no file matches 'none/*.txt'", ""),
        (["data", "prepare", "--text", "*.txt", "--tokenizer", "bpee", "--out", "x"], "tokenizer 'bpee'", "'bpe'"),
        (["explain", "optim.lrr"], "'optim.lrr' is neither a key nor a recipe", "'optim.lr'"),
        (["explain", "wikitext103"], "neither a key nor a recipe", "lm/wikitext103"),
        (["explain", "seed", "seed=1"], "'seed' is no recipe", "list recipes"),
    ],
)
def test_one_line_and_a_hint_and_nothing_written(
    cli: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], error: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some.txt").write_text("some text\n" * 100)
    done = cli(*arguments)
    lines = done.err.strip().splitlines()
    assert lines[0].startswith("error: ")
    assert error in lines[0]
    assert len(lines) <= 2
    assert all(line.startswith("hint: ") for line in lines[1:])
    assert hint in done.err
    assert done.out == ""
    assert done.code in (2, 5)
    assert [path.name for path in tmp_path.iterdir()] == ["some.txt"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["frobnicate"],
        ["train"],
        ["train", "demo"],
        ["list", "things"],
        ["train", "demo", "--ot", "x"],
        ["eval", "r", "s"],
    ],
)
def test_usage_errors_exit_with_2(cli: Callable, arguments: list[str]) -> None:
    done = cli(*arguments)
    assert done.code == 2
    assert "Usage: transnormer" in done.err


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (RunInUseError, 2),
        (CheckpointError, 3),
        (NonFiniteError, 4),
        (DataError, 5),
        (DiskError, 6),
        (Preempted, 75),
        (TransNormerError, 1),
    ],
)
def test_exit_codes_of_the_design(
    cli: Callable, monkeypatch: pytest.MonkeyPatch, kind: type[TransNormerError], code: int
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise kind("it went\nwrong with [bold] things", hint="do [this]")

    monkeypatch.setattr("transnormer.config.load.resolve", fail)
    done = cli("train", "demo", "--out", "x")
    assert done.code == code
    label = "" if kind is Preempted else "error: "  # to be stopped is no error
    assert done.err == f"{label}it went wrong with [bold] things\nhint: do [this]\n"


@pytest.mark.parametrize(
    ("file", "arguments"),
    [
        ("store/manifest.json", ["data", "info", "store"]),
        ("run/config.yaml", ["resume", "run"]),
        ("run/result.json", ["resume", "run"]),
        ("run/data.json", ["resume", "run", "train.steps=6"]),
        ("run/checkpoints/step-00000004/model.safetensors", ["resume", "run", "train.steps=6"]),
        ("run/final/model.safetensors", ["generate", "run", "--device", "cpu"]),
        ("copy/model.safetensors", ["generate", "copy", "--device", "cpu"]),
        ("copy/config.json", ["train", "demo", "--out", "new", "data.store=store", "model.init=copy"]),
        ("run/journal.jsonl", ["report", "runs", "run", "--out", "page.html"]),
        ("secret.txt", ["eval", "run", "--text", "secret.txt"]),
    ],
)
def test_what_may_not_be_read_is_named_and_left_as_it_is(
    cli: Callable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    finished_run: Path,
    store: Path,
    file: str,
    arguments: list[str],
) -> None:
    shutil.copytree(finished_run, tmp_path / "run")
    shutil.copytree(finished_run / "final", tmp_path / "copy", ignore=shutil.ignore_patterns("manifest.json"))
    shutil.copytree(store, tmp_path / "store")
    (tmp_path / "secret.txt").write_text("a secret")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    deny(tmp_path / file, monkeypatch)
    done = cli(*arguments)
    assert done.code == 5
    first, hint = done.err.splitlines()[-2:]
    assert first.startswith("error: cannot read ")
    assert first.endswith(f"{file}: Permission denied")
    assert hint == "hint: check its permissions (ls -l)"
    assert sorted(tmp_path.rglob("*")) == before


def deny(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the operating system would, also to root, whom no mode of a file keeps out."""
    open_file, may = io.open, os.access

    def open_others(path: Any, *args: Any, **options: Any) -> Any:
        if isinstance(path, str | Path) and Path(path).absolute() == file:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return open_file(path, *args, **options)

    monkeypatch.setattr(io, "open", open_others)
    monkeypatch.setattr("builtins.open", open_others)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).absolute() != file and may(path, mode))


def test_a_disk_that_cannot_read_is_no_bug(
    cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").write_text("seed: 1\n")

    def fail(checkpoints: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(checkpoints))

    monkeypatch.setattr("transnormer.train.checkpoint.list_checkpoints", fail)
    done = cli("generate", tmp_path, "--checkpoint", "last")
    assert done.code == 5
    assert "checkpoints: Input/output error" in done.err


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transnormer.config.load.resolve", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["train", "demo", "--out", "x"])


def test_a_long_message_stays_one_line_in_a_real_process(tmp_path: Path) -> None:
    recipe = tmp_path / ("long" * 40 + ".yaml")
    recipe.write_text("train: {stepz: 1}\n")
    done = subprocess.run(
        [sys.executable, "-m", "transnormer", "train", str(recipe), "--out", "x"],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "COLUMNS": "40"},
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize("verb", ["ops", "speed", "decode"])
def test_the_record_of_a_benchmark_is_a_json_file(cli: Callable, tmp_path: Path, verb: str) -> None:
    """Its table goes beside it as .md, which must not be the record itself."""
    done = cli("bench", verb, "--out", tmp_path / "record.md")
    assert done.code == 2
    assert "record.json" in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore"),
        RuntimeError("[enforce fail] . DefaultCPUAllocator: can't allocate memory: 9 bytes.\nmore"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_out_of_memory_is_said_in_a_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr("transnormer.cli.app.app", fail)
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 1
    assert "error: out of memory" in capsys.readouterr().err
    error = RuntimeError("a bug")
    with pytest.raises(RuntimeError, match="a bug"):
        main([])
