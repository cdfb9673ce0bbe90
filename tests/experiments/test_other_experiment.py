"""The runner and the tables know no experiment: a small one of language models is run, resumed, shown and shared."""

from __future__ import annotations

import io
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from reproduce_case import ReproduceCase, wait_until
from rich.console import Console

from transnormer.errors import ConfigError, Preempted
from transnormer.experiments.display import JobDisplay
from transnormer.experiments.experiment import Experiment, Selection, plan
from transnormer.experiments.record import read_records
from transnormer.experiments.runner import Runner
from transnormer.experiments.table import Figure, Table, score

SHORT = ["optim.warmup_steps=1", "train.batch_size=2", "train.eval_every=6", "train.save_every=1000"]
SHORT += ["data.limit_bytes=60000", "data.eval_windows=2", "data.sequence_length=32", "train.log_every=1"]
SHORT += ["train.device=cpu", "model.hidden_size=32", "model.intermediate_size=32"]


class TinyModels(Experiment):
    """Two language models on the embedded corpus."""

    name = "tiny"
    setups: ClassVar = {"demo": "demo"}
    title = "Tiny models"
    rows = ("t2", "vanilla")
    tables = (
        Table(
            title="Perplexity",
            caption="Of the test split.",
            rows=("t2", "vanilla"),
            in_paper=("t2", "vanilla"),
            figures={"python": Figure("python", score, {"t2": 2.5}, "lower")},
            locate=lambda record: (record.preset.removesuffix("-tiny"), "python"),
        ),
    )

    def columns(self, setup: str) -> Sequence[str]:
        return ("python",)

    def recipe(self, column: str, setup: str) -> str:
        return self.setups[setup]

    def settings(self, row: str, column: str, selection: Selection) -> list[str]:
        return [*SHORT, f"model.preset={row}-tiny"]


class MoreModels(TinyModels):
    """A second table, which has a job of the first under another name."""

    name = "more"
    home = "tiny"
    rows = ("baseline", "linear_elu")

    def settings(self, row: str, column: str, selection: Selection) -> list[str]:
        return super().settings("t2" if row == "baseline" else row, column, selection)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRANSNORMER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def run(experiment: Experiment, case: ReproduceCase, *overrides: str, rows: Sequence[str] | None = None) -> str:
    """What a person sees of it."""
    selection = Selection(rows or experiment.rows, experiment.columns("demo"), [42], "demo", overrides=overrides)
    jobs = plan(experiment, selection, case.runs)
    output = io.StringIO()
    try:
        Runner(experiment, jobs, case.runs, case.results, workers=2).run(JobDisplay(Console(file=output, width=200)))
    except Preempted:
        output.write("preempted")
    return output.getvalue()


def logged(case: ReproduceCase, name: str) -> int:
    path = case.runs / name / "journal.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def test_it_runs_and_can_be_stopped_and_is_shown(case: ReproduceCase, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["python-t2-42", "python-vanilla-42"]
    monkeypatch.setenv("HOLD", ",".join(names))

    def interrupt() -> None:
        wait_until(lambda: min(logged(case, name) for name in names) >= 5)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    seen = run(TinyModels(), case, "train.steps=12")
    thread.join()
    assert "jobs: 0 of 2 finished, 2 to run, 2 at once" in seen
    assert seen.endswith("preempted")
    assert not any(case.results.glob("*.json"))
    seen = run(TinyModels(), case, "train.steps=12")
    assert all(f"{name}: resumed" in seen for name in names)
    records = {record.name: record for record in read_records(case.results)}
    assert sorted(records) == names
    t2 = records["python-t2-42"]
    assert (t2.task, t2.primary_metric, t2.higher_is_better) == ("causal_lm", "perplexity", False)
    assert t2.valid is not None
    assert t2.test is not None
    assert t2.score == t2.test.metrics["perplexity"]
    assert t2.changes == {"train.steps": 12}, "what the row is, is no change"
    assert t2.data.label == "python, first 60,000 bytes"
    assert t2.data.sizes["train"] >= 60000
    assert "sources" not in t2.data.meta, "the digest has its many files"
    assert t2.resumed_after
    assert f"python-t2-42: test perplexity {t2.score:.2f} after" in seen
    page, cost = (case.results / "README.md").read_text().split("## Cost")
    assert "| t2 | " in cost
    rows = {line.split(" | ")[0].strip("| "): line for line in page.splitlines() if line.startswith("| ")}
    better = min(records.values(), key=lambda record: record.score)
    assert f"**{better.score:.2f}‡**" in page
    assert "‡ differs from the recipe: " in page
    assert rows["t2"].endswith("| 2.50 |")
    assert rows["vanilla"].endswith("| – |")
    assert page.count("**") == 2
    seen = run(TinyModels(), case, "train.steps=12")
    assert "jobs: 2 of 2 finished, 0 to run" in seen
    assert ": started" not in seen
    assert ": resumed" not in seen


def test_jobs_that_two_tables_share_run_once(case: ReproduceCase) -> None:
    first = run(TinyModels(), case, "train.steps=2", rows=["t2"])
    assert "python-t2-42: started" in first
    page, before = (case.results / "README.md").read_text(), (case.results / "python-t2-42.json").read_bytes()
    second = run(MoreModels(), case, "train.steps=2")
    assert "jobs: 1 of 2 finished, 1 to run, 1 at once" in second
    assert second.count(": started") == 1
    assert "python-linear_elu-42: started" in second
    assert sorted(path.name for path in case.results.iterdir()) == [
        *("README.md", "more.md", "python-linear_elu-42.json", "python-t2-42.json")
    ]
    assert (case.results / "python-t2-42.json").read_bytes() == before
    assert (case.results / "README.md").read_text() == page
    assert "linear_elu" in (case.results / "more.md").read_text()
    assert "1 of 1 finished, 0 to run" in run(TinyModels(), case, "train.steps=2", rows=["t2"])


def test_a_job_that_a_table_names_twice_runs_once(case: ReproduceCase) -> None:
    class Twice(MoreModels):
        rows = ("baseline", "t2")

    seen = run(Twice(), case, "train.steps=2")
    assert "jobs: 0 of 1 finished, 1 to run" in seen
    assert [path.stem for path in case.results.glob("*.json")] == ["python-baseline-42"]


def test_a_job_of_other_data_is_not_taken_for_the_same(case: ReproduceCase) -> None:
    run(TinyModels(), case, "train.steps=2", rows=["t2"])
    with pytest.raises(ConfigError, match=r"data.limit_bytes was 60000, is 50000"):
        run(TinyModels(), case, "train.steps=2", "data.limit_bytes=50000", rows=["t2"])
    assert not list(Path(case.runs).glob("*vanilla*"))
