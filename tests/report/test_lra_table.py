"""The Long-Range Arena table, from hand-made records: every number in its place, every mark, dashes for the rest."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from transnormer.errors import DataError
from transnormer.models.presets import METHODS
from transnormer.report.lra_paper import PAPER, TASKS
from transnormer.report.lra_table import accuracy_table, cost_table, lra_page, read_records, summary_rows

PUBLISHED = {"kind": "published", "differs_from_published": {}, "limit": None, "generated": None, "digest": "0"}
REGENERATED = {**PUBLISHED, "kind": "regenerated", "generated": {"seed": 0}}
STAND_IN = {**PUBLISHED, "kind": "stand-in", "differs_from_published": {"train": "34,000 of 147,086"}}


def record(task: str, method: str, accuracy: float, seed: int = 42, **changes: Any) -> dict[str, Any]:
    return {
        "task": task,
        "method": method,
        "seed": seed,
        "test_accuracy": accuracy,
        "config": {"protocol": None},
        "changes": {},
        "data": PUBLISHED,
        "device": "cuda",
        "precision": "bf16",
        "hardware": {"cpu": "a processor", "gpus": ["A GPU"]},
        "cells_at_once": 4,
        "steps_per_second": 412.34,
        "wall_steps_per_second": 300.0,
        "peak_memory_bytes": 3 * 2**29,
        "seconds": 1234.5,
        **changes,
    }


def cells(table: str) -> dict[str, list[str]]:
    """The columns of each method."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {row[0]: row[1:] for row in rows if not row[0].startswith("---")}


def test_ours_beside_the_papers() -> None:
    accuracies = dict(zip(TASKS, (42.0, 73.0, 50.0, 78.0, 84.0), strict=True))
    records = [record(task, "t2", accuracy) for task, accuracy in accuracies.items()]
    records += [record("listops", "vanilla", 36.125), record("listops", "linear_elu", 37.0)]
    table = cells(accuracy_table(records))
    assert table["method"][:4] == ["listops", "paper", "text", "paper"]
    assert table["method"][-2:] == ["mean of 5", "paper"]
    assert table["t2"] == [
        *("**42.00**", "41.60", "**73.00**", "72.20", "**50.00**", "49.60", "**78.00**", "76.80"),
        *("**84.00**", "83.82", "65.40", "64.80"),
    ]
    assert table["vanilla"][:4] == ["36.12", "38.37", "–", "61.95"]
    assert table["vanilla"][-2:] == ["–", "57.37"], "a mean of some tasks is no mean"
    assert table["linear_elu"] == ["37.00", *["–"] * 11]
    assert table["flash"][0] == "–"


def test_a_summary_has_the_methods_that_ran_and_means_of_whole_rows() -> None:
    accuracies = {"listops": 40.0, "text": 80.0, "image": 50.0, "pathfinder": 70.0}
    records = [record(task, "t2", accuracy) for task, accuracy in accuracies.items()] + [record("text", "t1", 66.5)]
    assert summary_rows(records) == [
        ["t2", "40.00", "80.00", "50.00", "70.00", "–", "60.00"],
        ["t1", "–", "66.50", "–", "–", "–", "–"],
    ]
    changed = [record(task, "t2", 60.0, changes={"seed": 1} if task == "text" else {}) for task in accuracies]
    assert summary_rows(changed)[0][-1] == "60.00‡", "a mean has the marks of what is in it"


def test_the_mean_over_the_papers_own_data() -> None:
    records = [record(task, "t2", 60.0, data=STAND_IN if task == "retrieval" else PUBLISHED) for task in TASKS]
    table = cells(accuracy_table(records))
    assert table["method"][-2:] == ["mean without retrieval", "paper"]
    assert table["t2"][-4:] == ["60.00†", "64.80", "60.00", "60.05"]
    assert table["t2"][8] == "**60.00†**"


def test_seeds_are_averaged() -> None:
    page = lra_page([record("text", "t2", accuracy, seed) for seed, accuracy in ((1, 70.0), (2, 72.0), (3, 74.0))])
    assert "**72.00 ± 2.00**" in page
    assert "over the seeds 1, 2, 3" in page
    assert "One seed: 7." in lra_page([record("text", "t2", 70.0, 7)])


def test_what_cannot_be_compared_is_marked_and_explained() -> None:
    page = lra_page(
        [
            record("retrieval", "t2", 70.0, data=STAND_IN),
            record("text", "t2", 60.0, changes={"train.steps": 100}),
            record("listops", "t2", 40.0, data=REGENERATED),
            record("image", "t2", 40.0, data={**REGENERATED, "kind": "stand-in", "limit": 3000}),
        ]
    )
    assert "70.00†" in page
    assert "60.00‡" in page
    assert "† retrieval: not the published data, never compare with it (train has 34,000 of 147,086)." in page
    assert "† image: not the published data, never compare with it (at most 3,000 examples of each split)." in page
    assert "listops: generated anew by the published procedure, seed 0." in page
    assert "‡ differs from the recipe: train.steps=100." in page


def test_a_checkpoint_chosen_on_the_test_split_is_named() -> None:
    page = lra_page([record("text", "t2", 60.0, config={"protocol": "lra_compat"})])
    assert "text under lra_compat: the checkpoint that is best on the test split" in page
    assert "lra_compat" not in lra_page([record("image", "t2", 60.0, config={"protocol": "lra_compat"})])


def test_cost() -> None:
    on_cpu = record("text", "t1", 60.0, device="cpu", precision="float32", cells_at_once=None, peak_memory_bytes=None)
    records = [record("listops", "t2", 40.0), record("image", "t2", 40.0, resumed_after=300), on_cpu]
    table = cells(cost_table(records))
    assert table["t2"] == ["412, 1.50, 1,234, 4", "–", "412, 1.50, 1,234, 4§", "–", "–"]
    assert table["t1"][1] == "412, –, 1,234, ?"
    assert list(table) == ["steps/s, GiB, s, at once", "t1", "t2"], "methods that did not run have no cost"
    assert "Measured on: A GPU, bf16; a processor, float32." in lra_page(records)
    assert "§ Stopped and continued" in lra_page(records)
    assert "§" not in lra_page([record("listops", "t2", 40.0)])


def test_an_empty_folder_and_another_method(tmp_path: Path) -> None:
    assert read_records(tmp_path / "absent") == []
    page = lra_page([])
    assert "| t2 | – | 41.60 |" in page
    assert cells(accuracy_table([record("text", "mine", 99.0)]))["mine"][2] == "**99.00**"


def test_records_are_read_from_files_alone(tmp_path: Path) -> None:
    (tmp_path / "text-t2-42.json").write_text(json.dumps(record("text", "t2", 71.0)))
    (tmp_path / "packing.json").write_text(json.dumps({"throughput": 4}))
    subprocess.run([sys.executable, "-m", "transnormer.report.lra_table", str(tmp_path)], check=True)
    assert (tmp_path / "README.md").read_text() == lra_page([record("text", "t2", 71.0)])
    (tmp_path / "text-t1-42.json").write_text('{"test_accuracy": 4')
    with pytest.raises(DataError, match=r"text-t1-42.json is not JSON"):
        read_records(tmp_path)
    (tmp_path / "text-t1-42.json").write_text('{"test_accuracy": 4}')
    with pytest.raises(DataError, match=r"text-t1-42.json has no 'task'"):
        read_records(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": None}, "has 'data': null, which is something else"),
        ({"data": {**PUBLISHED, "generated": 3}}, "has 'data.generated': 3"),
        ({"test_accuracy": None}, "has 'test_accuracy': null"),
        ({"hardware": {}}, "has no 'hardware.cpu'"),
        ({"seed": "42"}, "has 'seed': \"42\""),
    ],
)
def test_a_damaged_record_is_named(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "text-t2-42.json").write_text(json.dumps(record("text", "t2", 71.0) | change))
    with pytest.raises(DataError, match=re.escape(f"text-t2-42.json {words}")):
        read_records(tmp_path)


def test_a_copy_is_not_another_run(tmp_path: Path) -> None:
    (tmp_path / "text-t2-42.json").write_text(json.dumps(record("text", "t2", 71.0)))
    (tmp_path / "text-t2-42.old.json").write_text(json.dumps(record("text", "t2", 0.0)))
    with pytest.raises(DataError, match=r"text-t2-42.old.json is a record of text with t2 and seed 42"):
        read_records(tmp_path)


def run_module(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "transnormer.report.lra_table", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_what_the_module_says_to_people(tmp_path: Path) -> None:
    done = run_module("--help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: python -m transnormer.report.lra_table")
    done = run_module()
    assert done.returncode == 2
    assert "usage: " in done.stderr
    done = run_module(tmp_path / "absent")
    assert done.returncode == 2
    assert done.stderr.endswith(f"error: {tmp_path / 'absent'} is not a folder\n")
    (tmp_path / "text-t1-42.json").write_text("{")
    done = run_module(tmp_path)
    assert done.returncode == 5
    assert done.stderr.startswith(f"error: {tmp_path / 'text-t1-42.json'} is not JSON")
    assert [path.name for path in tmp_path.iterdir()] == ["text-t1-42.json"]


def test_the_papers_table() -> None:
    """Its averages as printed, and a row for every method of the zoo."""
    printed = {"vanilla": 57.37, "kernelized": 58.56, "nystrom": 58.93, "linformer": 54.69, "informer": 53.73}
    printed |= {"performer": 58.00, "reformer": 58.99, "bigbird": 59.05, "skyformer": 59.39, "long_short": 61.24}
    printed |= {"cosformer": 62.11, "flash_quad": 60.18, "flash": 61.31, "t1": 63.71, "t2": 64.80}
    assert printed.keys() == {method for method, figures in PAPER.items() if figures}
    for method, average in printed.items():
        assert sum(PAPER[method].values()) / 5 == pytest.approx(average, abs=0.011)
        assert PAPER[method].keys() == set(TASKS)
    assert PAPER.keys() == METHODS.keys()
