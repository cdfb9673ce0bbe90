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
    assert [job.name for job in planned.jobs] == [
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

    class Runner:
        def __init__(self, *arguments: object) -> None:
            self.minutes = arguments[-2]

        def run(self, display: object) -> None:
            shares.append(self.minutes)
            now[0] += 60 * takes.pop(0)

    monkeypatch.setattr(all_tables, "Runner", Runner)
    monkeypatch.setattr(all_tables.time, "monotonic", lambda: now[0])
    lm = experiment("lm")
    planned = [all_tables.Planned(lm, [], tmp_path, tmp_path)] * 3
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
