"""`reproduce all`: what has data runs within its share of the time, the rest is named with how to get it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from reproduce_case import ReproduceCase

from transnormer.errors import ConfigError
from transnormer.experiments import all_tables
from transnormer.experiments.all_tables import plan_all
from transnormer.experiments.executor import LocalExecutor
from transnormer.experiments.experiment import Selection, selections_of_all
from transnormer.experiments.paper import experiment
from transnormer.experiments.paper.contents import experiments_of_the_paper
from transnormer.experiments.paper.lra import LongRangeArena
from transnormer.experiments.record import read_records
from transnormer.experiments.stages import Stages


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRANSNORMER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def test_a_set_up_is_for_those_that_have_it() -> None:
    every = experiments_of_the_paper()
    chosen = {
        each.name: selection.setup for each, selection in selections_of_all(every, "enwiki", [1], None, []).items()
    }
    assert chosen == {"ablations": "enwiki", "glue": "enwiki", "lm": "enwiki", "lra": "skyformer"}
    with pytest.raises(ConfigError, match="unknown set-up 'enwik'"):
        selections_of_all(every, "enwik", [1], None, [])


def test_what_has_no_data_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lm, ablations = experiment("lm"), experiment("ablations")
    wanted = {
        lm: Selection(lm.rows, lm.columns("enwik8"), [1], "enwik8"),
        ablations: Selection(["t2", "norm"], ablations.columns("tiny"), [1], "tiny"),
    }
    (planned,) = plan_all(wanted, tmp_path / "runs", tmp_path / "results")
    assert [job.name for job in planned.plan()] == [
        "mlm-python-t2-1",
        "python-t2-1",
        "mlm-python-norm-1",
        "python-norm-1",
    ]
    assert (planned.runs, planned.results) == (tmp_path / "runs" / "ablations", tmp_path / "results" / "ablations")
    told = capsys.readouterr().out
    assert "left out: enwik8 of lm: " in told
    assert "transnormer data prepare enwik8 --source PATH" in told
    del wanted[ablations]
    with pytest.raises(ConfigError, match="nothing can run with these data"):
        plan_all(wanted, tmp_path / "runs", tmp_path / "results")


def test_each_has_an_equal_share_of_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now, shares = [0.0], []

    def run(stages: Stages, _: object) -> None:
        shares.append(stages.budget_minutes)
        now[0] += 60 * takes.pop(0)

    monkeypatch.setattr(Stages, "first", lambda _: None)
    monkeypatch.setattr(Stages, "run", run)
    monkeypatch.setattr(all_tables.time, "monotonic", lambda: now[0])
    lm = experiment("lm")
    planned = [Stages(lm, Selection(["t2"], ["enwik8"], [1], "enwik8"), tmp_path, tmp_path)] * 3
    takes = [10.0, 2.0, 1.0]
    all_tables.run_all(planned, None, 30.0, LocalExecutor(), dry_run=False)
    assert shares == [10.0, 10.0, 18.0], "what the second did not need goes to the third"
    shares.clear()
    takes = [40.0]
    all_tables.run_all(planned, None, 30.0, LocalExecutor(), dry_run=False)
    assert shares == [10.0], "no time is left for the others"


def test_it_runs_what_can_run_and_goes_on(case: ReproduceCase) -> None:
    case.table, case.options = "all", ["--setup", "authors", "--seeds", "0", "lra.limit_examples=9"]
    assert case.run("--dry-run", "--budget-minutes", "60") == 0, case.err
    assert "left out: cola of glue: " in case.out
    assert "left out: wikitext103 of lm: " in case.out
    assert "budget of 60 min: " in case.out
    assert "text-t2-0: transnormer train lra/authors/text" not in case.out, "prepared data have no limit of examples"
    assert "listops-t2-0: transnormer train lra/authors/listops" in case.out
    assert not case.runs.exists()
    assert case.run("--methods", "t2") == 2
    assert "--methods t2: each table has names of its own" in case.err


@pytest.fixture
def arena(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two methods of one task: all others of the paper would take an hour."""
    monkeypatch.setattr(LongRangeArena, "rows", ["t2", "performer"])
    monkeypatch.setattr(LongRangeArena, "columns", lambda *_: ["text"])
    monkeypatch.setattr("transnormer.experiments.paper.contents.experiments_of_the_paper", lambda: [LongRangeArena()])


FAIR = ["--setup", "fair", "trials:train.steps=2", "trials:train.eval_every=1"]


@pytest.mark.usefixtures("arena")
def test_where_trials_choose_they_come_first_and_full_jobs_take_what_they_chose(case: ReproduceCase) -> None:
    case.table, case.options = "all", FAIR
    assert case.run("--dry-run", "--budget-minutes", "60") == 0, case.err
    assert "jobs: 0 of 12 finished, 12 to run" in case.out
    assert "full runs: 2 rows and columns wait for trials" in case.out
    assert "text-t2-42: " not in case.out, "no full job without a choice"
    assert not case.runs.exists()
    assert not case.results.exists()

    assert case.run("--budget-minutes", "60") == 0, case.err
    trials = {record.name: record for record in read_records(case.results / "lra-fair-trials")}
    full = {record.name: record for record in read_records(case.results / "lra-fair")}
    assert len(trials) == 12
    assert full.keys() == {"text-t2-42", "text-performer-42"}
    for row in ("t2", "performer"):
        record = full[f"text-{row}-42"]
        assert record.choice is not None
        assert f"{row} on text chose {record.choice.name} (" in case.out
        chosen = trials[f"text-{row}-{record.choice.name}-42"]
        assert record.config["optim"]["lr"] == chosen.config["optim"]["lr"]
        assert record.config["model"] == chosen.config["model"]

    assert case.run("--dry-run") == 0, case.err
    assert "jobs: 12 of 12 finished, 0 to run" in case.out
    assert "jobs: 2 of 2 finished, 0 to run" in case.out


@pytest.mark.usefixtures("arena")
def test_what_is_wrong_with_full_jobs_is_said_before_any_trial(case: ReproduceCase) -> None:
    case.table, case.options = "all", FAIR
    assert case.run("optim.lr=1e-2") == 2
    assert "left out: text of lra: optim.lr: trials decide this" in case.out
    assert not case.runs.exists()
