"""A run small enough to be made dozens of times in the tests: real task, real data, real model, a tenth of a second."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transnormer.config.schema import RunConfig
from transnormer.data.prepare import prepare
from transnormer.train.learner import Learner

STEPS = 12


def tiny_store(folder: Path) -> Path:
    """A byte-level token store whose epoch ends in the middle of a step and of a run."""
    words = ["norm", "diag", "linear", "softmax", "kernel", "chunk", "state", "token", "gate", "devil"]
    generator = np.random.default_rng(7)
    text = " ".join(generator.choice(words, size=200))
    (folder / "text.txt").write_text(text)
    return prepare("text", folder / "store", tokenizer="byte", source=str(folder / "text.txt"))


def tiny_config(store: Path, **changes: Any) -> RunConfig:
    """A config of 12 steps with dropout and accumulation; changes are written as `train__steps=3`."""
    tree: dict[str, Any] = {
        "task": "causal_lm",
        "model": {
            "preset": "t2-tiny",
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 24,
            "dropout": 0.1,
        },
        "data": {"store": str(store), "sequence_length": 32, "eval_windows": 2},
        "optim": {"lr": 0.01, "warmup_steps": 2, "clip_norm": 1.0},
        "train": {
            "steps": STEPS,
            "batch_size": 4,
            "micro_batch_size": 2,
            "eval_every": 6,
            "save_every": 3,
            "log_every": 1,
            "keep_last": 2,
            "device": "cpu",
        },
    }
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if key:
            tree[section][key] = value
        else:
            tree[section] = value
    return RunConfig.model_validate(tree)


def weights_hash(run: Path) -> str:
    """The sha256 of a run's final weights: what every disturbed run must share with the undisturbed one."""
    return hashlib.sha256((run / "final" / "model.safetensors").read_bytes()).hexdigest()


def journal_lines(run: Path, kind: str) -> list[dict[str, Any]]:
    """Lines of one kind; every line of the journal must be strict JSON."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    lines = [json.loads(line, parse_constant=refuse) for line in (run / "journal.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def losses(run: Path) -> list[tuple[int, float]]:
    """(step, loss) of every train line, in the order of the file."""
    return [(line["step"], line["loss"]) for line in journal_lines(run, "train")]


def evaluations(run: Path) -> list[tuple[int, dict[str, float]]]:
    """(step, metrics) of every eval line, in the order of the file."""
    return [(line["step"], line["metrics"]) for line in journal_lines(run, "eval")]


def stop_at(monkeypatch: pytest.MonkeyPatch, step: int, number: int = signal.SIGTERM) -> None:
    """Send ourselves a signal while a step (counted from 1) is made."""
    advance = Learner.advance

    def interrupted(self, at, batches):
        if at < step <= at + len(batches):
            os.kill(os.getpid(), number)
        return advance(self, at, batches)

    monkeypatch.setattr(Learner, "advance", interrupted)
