"""A run folder as a report reads it: configuration, curves, outcome; from its files alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from transnormer.config.known_runs import require_run
from transnormer.errors import DataError
from transnormer.journal import read_journal
from transnormer.run_result import read_result

_SHOWN = {"parameters", "tokens_per_second", "protocol"}  # of the outcome, beside its metrics


@dataclass(frozen=True)
class RunRecord:
    """What a run left behind. `train` and `evaluations` are lines of its journal; `result` is None while it runs.

    `store` is the folder of its data and `digest` what they are, tokenizer included; None of a run that knows neither.
    """

    name: str
    config: dict[str, Any]
    train: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    result: dict[str, Any] | None
    store: str | None = None
    digest: str | None = None

    @property
    def model(self) -> str:
        """Its preset; a model that came with weights to start from may have none."""
        section = self.config["model"]
        return section["preset"] or f"that of {section['init']}"


def read_runs(folders: Sequence[Path]) -> list[RunRecord]:
    """Several run folders; those of the same name are called by the path that was given."""
    runs = [read_run(folder) for folder in folders]
    counts = Counter(run.name for run in runs)
    return [
        replace(run, name=str(folder)) if counts[run.name] > 1 else run
        for run, folder in zip(runs, folders, strict=True)
    ]


def read_run(folder: Path) -> RunRecord:
    """Read a run folder; a folder that is none, or a damaged line, is an error that names the file."""
    config_file, journal_file, data_file = folder / "config.yaml", folder / "journal.jsonl", folder / "data.json"
    require_run(folder)
    lines = read_journal(journal_file) if journal_file.is_file() else []
    result = read_result(folder / "result.json", _SHOWN)
    try:
        config = yaml.safe_load(config_file.read_text(encoding="utf-8"))
        data = json.loads(data_file.read_text(encoding="utf-8")) if data_file.is_file() else {}
        if not isinstance(config, dict) or not isinstance(config.get("model"), dict) or not isinstance(data, dict):
            raise ValueError("it is no mapping of the right shape")
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        hint = "restore it from a backup"
        raise DataError(f"{folder} has a damaged config.yaml or data.json: {error}", hint) from error
    return RunRecord(
        name=folder.resolve().name,
        config=config,
        train=[line for line in lines if line["kind"] == "train"],
        evaluations=[line for line in lines if line["kind"] == "eval"],
        result=result,
        store=data.get("store"),
        digest=data.get("digest"),
    )
