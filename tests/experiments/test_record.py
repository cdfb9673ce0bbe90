"""Records: one schema writes and reads them, damage is named, and those of version 1 are read as they are."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from record_case import PUBLISHED, make_record, record_tree

from transnormer.errors import DataError
from transnormer.experiments.record import Record, read_records
from transnormer.files import to_json

OLD = Path(__file__).resolve().parents[2] / "results" / "lra-tuned" / "text-t2-42.json"


def write(folder: Path, tree: dict[str, Any], name: str = "text-t2-42") -> None:
    (folder / f"{name}.json").write_text(to_json(tree))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    made = make_record("text", "t2", accuracy=0.71)
    made.write(tmp_path)
    assert read_records(tmp_path) == [made]
    assert json.loads((tmp_path / "text-t2-42.json").read_text()) == record_tree("text", "t2", accuracy=0.71)


def test_any_metric_can_be_the_primary_one() -> None:
    scores = {"step": 3, "metrics": {"perplexity": 20.5, "loss": 3.0}}
    record = make_record("text", "t2", primary_metric="perplexity", higher_is_better=False, valid=scores, test=None)
    assert record.score == 20.5
    assert record.score_in_words == "valid perplexity 20.50"
    assert make_record("text", "t2", accuracy=0.4075).score_in_words == "test accuracy 40.75"


def test_numbers_that_json_lacks(tmp_path: Path) -> None:
    make_record("text", "t2", accuracy=math.inf).write(tmp_path)
    assert '"inf"' in (tmp_path / "text-t2-42.json").read_text()
    (found,) = read_records(tmp_path)
    assert found.score == math.inf
    norm = {"steps": 2, "mean": math.inf, "relative_deviation": math.nan, "nonfinite": 0}
    make_record("text", "t2", gradient_norm=norm).write(tmp_path)
    (found,) = read_records(tmp_path)
    assert found.gradient_norm is not None
    assert found.gradient_norm.mean == math.inf
    assert math.isnan(found.gradient_norm.relative_deviation)


def test_nothing_else_is_written() -> None:
    with pytest.raises(ValidationError, match="extra"):
        make_record("text", "t2", mood="good")


def test_other_files_are_about_something_else(tmp_path: Path) -> None:
    make_record("text", "t2").write(tmp_path)
    (tmp_path / "packing.json").write_text(json.dumps({"throughput": 4}))
    (tmp_path / "list.json").write_text("[]")
    assert [record.name for record in read_records(tmp_path)] == ["text-t2-42"]
    (tmp_path / "text-t1-42.json").write_text('{"version": 2')
    with pytest.raises(DataError, match=r"text-t1-42.json is not JSON"):
        read_records(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": None}, "has 'data': null, which is something else"),
        ({"data": {**PUBLISHED, "meta": 3}}, "has 'data.meta': 3"),
        ({"test": {"step": 1, "metrics": {"accuracy": None}}}, "has 'test.metrics.accuracy': null"),
        ({"hardware": {}}, "has no 'hardware.cpu'"),
        ({"seed": "42"}, "has 'seed': \"42\""),
        ({"mood": "good"}, "has 'mood': \"good\", which is something else"),
    ],
)
def test_a_damaged_record_is_named(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    write(tmp_path, record_tree("text", "t2") | change)
    with pytest.raises(DataError, match=re.escape(f"text-t2-42.json {words}")):
        read_records(tmp_path)


def test_a_copy_is_not_another_run(tmp_path: Path) -> None:
    write(tmp_path, record_tree("text", "t2"))
    write(tmp_path, record_tree("text", "t2"), "text-t2-42.old")
    with pytest.raises(DataError, match=r"text-t2-42.old.json is the record of text-t2-42"):
        read_records(tmp_path)


def test_version_1() -> None:
    old = json.loads(OLD.read_text())
    record = Record.model_validate(old)
    assert (record.name, record.task, record.preset) == ("text-t2-42", "lra/text", "t2-lra-text")
    assert record.score == pytest.approx(old["test_accuracy"], abs=1e-12)
    assert record.valid is not None
    assert record.valid.step == old["best_valid_step"]
    assert (record.primary_metric, record.execution) == ("accuracy", "cuda_graph")
    assert record.jobs_at_once == old["cells_at_once"]
    assert record.steps_per_second == pytest.approx(old["steps_per_second"])
    assert (record.data.label, record.data.sizes) == (old["data"]["kind"], old["data"]["examples"])
    assert record.data.meta["split_rule"] == old["data"]["split_rule"]
    assert (record.command, record.date, record.config_hash) == (None, None, None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": None}, "has 'data': null, which is something else"),
        ({"test_accuracy": None}, "has 'test.metrics.accuracy': null"),
        ({"seed": "42"}, "has 'seed': \"42\""),
    ],
)
def test_a_damaged_record_of_version_1_is_named(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    write(tmp_path, json.loads(OLD.read_text()) | change)
    with pytest.raises(DataError, match=re.escape(f"text-t2-42.json {words}")):
        read_records(tmp_path)
    write(tmp_path, {"test_accuracy": 4})
    with pytest.raises(DataError, match=r"text-t2-42.json has no 'name'"):
        read_records(tmp_path)
