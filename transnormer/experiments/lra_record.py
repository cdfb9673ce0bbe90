"""results/lra/<task>-<method>-<seed>.json: one finished cell, as it is published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from transnormer.config.load import load_config
from transnormer.config.renamed import upgraded
from transnormer.config.schema import RunConfig
from transnormer.data.examples import ExampleStore
from transnormer.data.lra.prepare import plan
from transnormer.errors import ConfigError
from transnormer.experiments.cells import PLACE_KEYS, Cell, differences, in_words
from transnormer.experiments.pack import Ended
from transnormer.report.lra_table import cell_name, lra_page, read_records
from transnormer.train.durable import write_json, write_text

Record = dict[str, Any]

_CELL_KEYS = {"model.preset", "seed"}  # which cell it is
_META: dict[str, Any] = {
    "generated": None,
    "sources": None,
    "split_rule": None,
    "limit": None,
    "differs_from_published": {},
}


def name_of(record: Record) -> str:
    """The name of the cell that a record is of."""
    return cell_name(record["task"], record["method"], record["seed"])


def record_file(cell: Cell, results: Path) -> Path:
    """Where the record of a cell lies."""
    return results / f"{cell.name}.json"


def cell_record(cell: Cell, result: dict[str, Any], store: ExampleStore, ended: Ended | None) -> Record:
    """Everything about a finished cell; `ended` is None where this grid did not see it run."""
    test, best = result["test"], result["best"]
    return {
        "task": cell.task,
        "method": cell.method,
        "seed": cell.seed,
        "recipe": cell.recipe,
        "test_accuracy": 100 * test["metrics"]["accuracy"],
        "best_valid_accuracy": 100 * best["metrics"]["accuracy"],
        "best_valid_step": best["step"],
        "steps": result["steps"],
        "steps_per_second": result["steps"] / result["seconds"],
        "tokens_per_second": result["tokens_per_second"],
        "wall_steps_per_second": _wall_rate(result["steps"], ended),
        "cells_at_once": ended.at_once if ended else None,
        "resumed_after": ended.first_step if ended else None,
        "peak_memory_bytes": result["peak_memory_bytes"],
        "seconds": result["seconds"],
        "execution": result.get("execution"),
        "parameters": result["parameters"],
        "protocol": result["protocol"],
        "data": data_facts(store),
        "changes": {key: now for key, (_, now) in _changes(cell).items()},
        "config": _without_folders(cell.config),
        **{key: result[key] for key in ("device", "precision", "commit", "versions", "hardware")},
    }


def data_facts(store: ExampleStore) -> dict[str, Any]:
    """What a model was trained on: the published set, one generated anew by its procedure, or a stand-in for it."""
    facts = {key: store.meta.get(key) or default for key, default in _META.items()}
    if facts["differs_from_published"] or facts["limit"]:
        kind = "stand-in"
    else:
        kind = "regenerated" if facts["generated"] else "published"
    examples = {split: len(store.split(split)) for split in store.splits}
    return {"kind": kind, "examples": examples, **facts, "digest": store.digest}


def check_record(record: Record, cell: Cell, path: Path, store: ExampleStore | None) -> None:
    """Refuse to take a record for the cell if it was made with other settings, or from other data where it is known.

    Without a store or files the data would be generated, and the arguments say which they would be.
    """
    try:
        config = RunConfig.model_validate(upgraded(record["config"]))
    except ValidationError as error:
        raise ConfigError(
            f"{path} has a config of another version of this program: {error.errors()[0]['msg']}",
            hint="move it away, or choose another --results",
        ) from error
    if changed := differences(config, cell.config, besides=PLACE_KEYS):
        raise ConfigError(
            f"{path} was made with another config: {in_words(changed)}",
            hint="give the same settings again, move it away, or choose another --results",
        )
    data, difference = record["data"], None
    if store is not None:
        if data["digest"] != store.digest:
            difference = f"its digest is {data['digest'][:12]}, not {store.digest[:12]}"
    elif cell.config.data.source is None:
        meta = plan(cell.config.task, limit=cell.config.lra.limit_examples).meta
        difference = in_words({key: (data[key], meta[key]) for key in ("generated", "limit") if data[key] != meta[key]})
    if difference:
        raise ConfigError(
            f"{path} was made from other data: {difference}",
            hint="use the same --data, move it away, or choose another --results",
        )


def write_record(record: Record, path: Path) -> None:
    """Write a record, then the table of all records beside it."""
    write_json(path, record)
    write_table(path.parent)


def write_table(results: Path) -> None:
    """results/lra/README.md."""
    write_text(results / "README.md", lra_page(read_records(results)))


def _wall_rate(steps: int, ended: Ended | None) -> float | None:
    """Steps per second of wall time, start, evaluations and test included: what planning needs."""
    if ended is None or ended.first_step >= steps:
        return None
    return (steps - ended.first_step) / ended.seconds


def _changes(cell: Cell) -> dict[str, tuple[Any, Any]]:
    """What differs from the shipped recipe."""
    return differences(load_config(cell.recipe), cell.config, besides=_CELL_KEYS | PLACE_KEYS)


def _without_folders(config: RunConfig) -> dict[str, Any]:
    """Records are published: an absolute path keeps its name only."""
    tree = config.model_dump(mode="json")
    for key in ("store", "source"):
        if (value := tree["data"][key]) is not None and Path(value).is_absolute():
            tree["data"][key] = Path(value).name
    return tree
