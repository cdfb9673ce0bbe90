"""Run folders as `transnormer train` leaves them, of a few lines each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml


def write_run(
    folder: Path, preset: str, finished: bool = True, test: dict[str, float | str] | None = None, **config: Any
) -> Path:
    """A run of four steps; `config` is what it has beside its preset."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"model": {"preset": preset}, **config}))
    lines = [{"kind": "train", "step": s, "loss": 5 / s, "grad_norm": 1.0, "tokens": 100 * s} for s in (1, 2, 4)]
    lines.append({"kind": "eval", "step": 4, "split": "valid", "metrics": {"loss": 1.5}})
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        result = {
            "preset": preset,
            "parameters": 123_456,
            "tokens_per_second": 789.4,
            "metrics": {"loss": 1.5, "bits_per_byte": 2.164},
            "test": test and {"split": "test", "step": 2, "metrics": test},
            "protocol": "windows <of> 8",
            "device": "cpu",
            "precision": "float32",
            "hardware": {"cpu": "a processor"},
            "seed": 7,
            "commit": None,
            "versions": {"torch": "2.13"},
        }
        (folder / "result.json").write_text(json.dumps(result))
    return folder
