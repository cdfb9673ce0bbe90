"""Trials decide settings of full jobs: run in real processes, stopped in between and taken up, by validation alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from record_case import make_record
from reproduce_case import ReproduceCase

from transnormer.experiments.experiment import Selection
from transnormer.experiments.paper.lra import PAPER, TASKS, LongRangeArena
from transnormer.experiments.record import read_records

FAIR = ["--setup", "fair", "trials:train.steps=2", "trials:train.eval_every=1"]
SELECTION = Selection(["t2", "performer"], ["text"], [42], "fair")


@pytest.fixture
def fair(case: ReproduceCase) -> ReproduceCase:
    case.options = ["--methods", "t2,performer", "--tasks", "text"]
    return case


def trials_of(case: ReproduceCase) -> Path:
    return case.results / "lra-fair-trials"


def edited(path: Path, **scores: dict[str, Any]) -> None:
    tree = json.loads(path.read_text())
    for split, metrics in scores.items():
        tree[split]["metrics"] |= metrics
    path.write_text(json.dumps(tree))


def test_trials_then_full_jobs_stopped_in_between_and_taken_up(fair: ReproduceCase) -> None:
    fair.options[1] = "t2"
    assert fair.run(*FAIR) == 0, fair.err
    records = {record.name: record for record in read_records(trials_of(fair))}
    assert len(records) == 6
    assert {record.steps for record in records.values()} == {2}
    [full] = read_records(fair.results)
    best = max(records.values(), key=lambda record: record.valid_score)  # of equals the first, as they were planned
    assert full.steps == 4
    assert full.choice is not None
    assert full.choice.scores[full.choice.name] == best.valid_score
    assert full.changes.keys() & {"optim.lr", "model.position", "model.position_embedding"} == set()
    assert f"t2 on text chose {full.choice.name} (validation: " in fair.out

    # Another method joins; then all is as if it had been killed between its trials and its full job.
    fair.options[1] = "t2,performer"
    assert fair.run(*FAIR) == 0, fair.err
    assert "jobs: 6 of 12 finished, 6 to run" in fair.out
    assert "jobs: 1 of 2 finished, 1 to run" in fair.out
    shutil.rmtree(fair.runs / "text-performer-42")
    (fair.results / "text-performer-42.json").unlink()
    (trials_of(fair) / "text-performer-none-1e-3-42.json").unlink()  # recorded again from its run
    assert fair.run(*FAIR) == 0, fair.err
    assert "jobs: 12 of 12 finished, 0 to run" in fair.out
    assert "jobs: 1 of 2 finished, 1 to run" in fair.out
    assert fair.run(*FAIR) == 0, fair.err
    assert "jobs: 2 of 2 finished, 0 to run" in fair.out
    page = (trials_of(fair) / "README.md").read_text()
    assert page.count("**") == 2 * 2

    trials = LongRangeArena().trials("fair")
    assert trials is not None
    before = trials.choices(SELECTION, trials_of(fair))
    for number, path in enumerate(sorted(trials_of(fair).glob("*.json"))):
        edited(path, test={"accuracy": number / 100, "loss": 100.0 - number})
    assert trials.choices(SELECTION, trials_of(fair)) == before
    edited(trials_of(fair) / "text-t2-none-3e-4-42.json", valid={"accuracy": 1.0})
    edited(trials_of(fair) / "text-t2-rope-3e-4-42.json", valid={"accuracy": "nan"})
    assert trials.choices(SELECTION, trials_of(fair))["t2", "text"].name == "none-3e-4"
    # The full job that is there was made with another choice: an error, not a table of both.
    if full.choice.name != "none-3e-4":
        assert fair.run(*FAIR) == 2
        assert "was made with another config" in fair.err


def test_of_equal_trials_the_page_shows_the_one_that_is_chosen(tmp_path: Path) -> None:
    trials = LongRangeArena().trials("fair")
    assert trials is not None
    for name in trials.variants("t2", "fair"):
        make_record("text", "t2", 42, 0.5, name=f"text-t2-{name}-42").write(tmp_path)
    choice = trials.choices(SELECTION, tmp_path)["t2", "text"]
    assert choice.name == "sinusoidal-3e-4"
    assert "**sinusoidal-3e-4 50.00**" in trials.page(read_records(tmp_path))


def test_without_all_trials_there_is_no_full_job(fair: ReproduceCase) -> None:
    assert fair.run(*FAIR, "--dry-run") == 0, fair.err
    assert "jobs: 0 of 12 finished" in fair.out
    assert "full runs: 2 rows and columns wait for trials" in fair.out
    assert not fair.runs.exists()


@pytest.mark.parametrize("override", ["optim.lr=1e-2", "t2:model.position=rope", "trials:optim.lr=1e-2"])
def test_what_trials_decide_cannot_be_overridden(fair: ReproduceCase, override: str) -> None:
    assert fair.run("--setup", "fair", override) == 2
    assert "trials decide this" in fair.err


def test_the_test_split_cannot_be_made_the_judge(fair: ReproduceCase) -> None:
    assert fair.run("--setup", "fair", "lra.protocol=lra_compat") == 2
    assert "apart from the test split" in fair.err


def test_records_of_another_set_up_are_refused_before_any_trial(fair: ReproduceCase) -> None:
    assert fair.run("--methods", "t2") == 0, fair.err
    assert fair.run(*FAIR) == 2
    assert "has records of lra/*, these jobs are of lra/fair/*" in fair.err
    assert not (fair.runs / "lra-fair-trials").exists()


def test_every_method_has_as_many_trials_of_the_same_length() -> None:
    table = LongRangeArena()
    trials = table.trials("fair")
    assert trials is not None
    assert set(PAPER) == set(table.rows)
    counts = {row: len(trials.variants(row, "fair")) for row in table.rows}
    assert set(counts.values()) == {6}, counts
    rotating = {row for row in table.rows if any(name.startswith("rope") for name in trials.variants(row, "fair"))}
    assert rotating == {"t1", "t2", "vanilla", "llama", "flash", "flash_quad"}
    steps = {
        tuple(text for text in each if text.startswith("train."))
        for row in table.rows
        for each in trials.variants(row, "fair").values()
    }
    assert len(steps) == 1
    assert list(trials.columns("fair")) == list(TASKS)
