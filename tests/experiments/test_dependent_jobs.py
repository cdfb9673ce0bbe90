"""Jobs that begin with the weights of others: in order, once, through failures, and known by what they began with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from reproduce_case import ReproduceCase
from test_other_experiment import TinyModels, cache, run  # noqa: F401 - a fixture

from transnormer.errors import ConfigError, TransNormerError
from transnormer.experiments.experiment import Cell, Selection, plan
from transnormer.experiments.record import read_records
from transnormer.files import sha256


class Pretrained(TinyModels):
    """What others begin with."""

    name = "first"


class FineTuned(TinyModels):
    """Models that go on from the others, with one seed of them for all of its own."""

    name = "second"

    def parent(self, row: str, column: str, seed: int, selection: Selection) -> Cell | None:
        return Cell(Pretrained(), row, "python", 7, "demo") if row == "t2" else None


STEPS = ("train.steps=3", "first:train.steps=2")


@pytest.fixture(scope="module")
def pretrained() -> Pretrained:
    return Pretrained()


def names(folder: Path) -> list[str]:
    return [record.name for record in read_records(folder)]


def test_a_job_waits_for_the_one_it_begins_with(case: ReproduceCase) -> None:
    case.folder = case.folder / "any"
    out = run(FineTuned(), case, *STEPS)
    assert "jobs: 0 of 3 finished, 3 to run" in out
    lines = [line for line in out.splitlines() if line.startswith("python-")]
    assert [n for n, line in enumerate(lines) if line.startswith("python-t2-7: ")][-1] < lines.index(
        "python-t2-42: started"
    )
    parent, child = case.runs / "first" / "python-t2-7", case.runs / "python-t2-42"
    weights = sha256(parent / "final" / "model.safetensors")
    assert json.loads((child / "result.json").read_text())["init"]["sha256"] == weights
    [first] = read_records(case.results / "first")
    found = {record.name: record for record in read_records(case.results)}
    assert found["python-vanilla-42"].parent is None
    began = found["python-t2-42"].parent
    assert began is not None
    assert (began.name, began.config_hash, began.sha256) == (first.name, first.config_hash, weights)
    assert found["python-t2-42"].config["model"]["init"] == "python-t2-7"
    assert (first.steps, found["python-t2-42"].steps) == (2, 3)
    assert "model.init" not in found["python-t2-42"].changes
    check_again(case, first.config_hash)


def check_again(case: ReproduceCase, first: str | None) -> None:
    """Nothing runs twice, unless weights are needed that are no longer there: a record of them is not enough."""
    assert "jobs: 2 of 2 finished, 0 to run" in run(FineTuned(), case, *STEPS)
    with pytest.raises(ConfigError, match=r"python-t2-42.json began with other weights: those of python-t2-7"):
        run(FineTuned(), case, "train.steps=3", "first:train.steps=4")
    shutil.rmtree(case.runs)
    (case.results / "python-t2-42.json").unlink()
    out = run(FineTuned(), case, *STEPS)
    assert "jobs: 1 of 3 finished, 2 to run" in out
    assert "python-t2-7: started" in out
    assert [record.config_hash for record in read_records(case.results / "first")] == [first]


def test_a_job_that_fails_stops_those_that_begin_with_it(case: ReproduceCase) -> None:
    # A NaN stops it.
    too_fast = ("optim.lr=1e3", "optim.weight_decay=1e3", "optim.warmup_steps=0", "train.steps=12")
    overrides = [*STEPS, *(f"first:{override}" for override in too_fast)]
    with pytest.raises(TransNormerError, match=r"1 of 2 jobs failed: python-t2-7; not run, .*: python-t2-42"):
        run(FineTuned(), case, *overrides, rows=["t2"])
    assert names(case.results) == []
    assert not (case.runs / "python-t2-42").exists()


def test_folders_of_the_usual_names_lie_side_by_side(pretrained: Pretrained) -> None:
    assert pretrained.place_of("other", Path("runs/first")) == Path("runs/other")
    assert pretrained.place_of("other", Path("runs/mine")) == Path("runs/mine/other")


def test_overrides_for_experiments_that_give_no_weights_are_refused(case: ReproduceCase) -> None:
    with pytest.raises(ConfigError, match="there is no job of 'lra'"):
        run(FineTuned(), case, "lra:train.steps=2")


def test_a_person_may_give_the_weights(case: ReproduceCase) -> None:
    given = case.folder / "model"
    selection = Selection(["t2"], ["python"], [42], "demo", overrides=[f"model.init={given}"])
    with pytest.raises(ConfigError, match=r"model.init: .* does not exist"):
        plan(FineTuned(), selection, case.runs)
    given.mkdir()
    (given / "config.json").write_text('{"model_type": "transnormer"}')
    [job] = plan(FineTuned(), selection, case.runs)
    assert (job.parent, job.config.model.init) == (None, str(given))
