"""The GLUE table: the best rate is shown, averages are the paper's, and jobs run from weights to the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from record_case import STAND_IN, record_tree
from reproduce_case import ReproduceCase

from transnormer.data.examples import ExampleStore
from transnormer.data.prepare import prepare
from transnormer.errors import ConfigError
from transnormer.experiments.experiment import Selection, plan
from transnormer.experiments.paper.glue import AVERAGED, FIGURES, PAPER, RATES, TABLES, TASKS, Glue, locate, summary
from transnormer.experiments.record import Record, read_records
from transnormer.experiments.recording import record_of
from transnormer.train.loop import train

PRINTED = [78.79, 78.20, 76.87, 77.01, 63.41, 70.00, 79.38, 78.78]  # the averages of the paper


def record(task: str, method: str, value: float, lr: float = 1e-5, seed: int = 0, **changes: Any) -> Record:
    metric = {"mrpc": "f1", "cola": "matthews"}.get(task, "accuracy")
    metrics = {metric: value, **({"accuracy_mismatched": value + 0.1} if task == "mnli" else {})}
    fields = {
        "name": f"{task}-{method}-enwiki-{lr:g}-{seed}",
        "task": f"glue/{task}",
        "preset": f"{method}-mlm-small",
        "recipe": f"glue/{task}",
        "config": {"optim": {"lr": lr}},
        "primary_metric": metric,
        "valid": {"step": 3, "metrics": metrics},
        "test": None,
    }
    return Record.model_validate({**record_tree("text", method, seed), **fields, **changes})


def cells(page: str, row: str) -> list[str]:
    line = next(line for line in page.splitlines() if line.startswith(f"| {row} |"))  # the first is of the scores
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def by_heading(page: str, row: str) -> dict[str, str]:
    """Our figures of a row; the paper's are in the columns beside them."""
    return {head: cell for head, cell in zip(cells(page, "method"), cells(page, row), strict=True) if head != "paper"}


def test_the_papers_averages_are_those_it_prints() -> None:
    for row, printed in zip(PAPER, PRINTED, strict=True):
        assert sum(PAPER[row]) / len(AVERAGED) == pytest.approx(printed, abs=0.006)
    page = Glue().page([])
    assert cells(page, "linear_elu")[-1] == "70.00"
    assert cells(page, "method")[-2:] == ["AVG", "paper"]
    assert "AVG" not in FIGURES
    assert "RTE" not in AVERAGED


def test_the_rate_that_is_best_over_seeds_is_shown() -> None:
    records = [
        record("sst2", "t2", 0.9, lr=1e-5, seed=1),
        record("sst2", "t2", 0.8, lr=1e-5, seed=2),
        record("sst2", "t2", 0.95, lr=6e-5, seed=1),  # the best run, at a rate that is worse on average
        record("sst2", "t2", 0.6, lr=6e-5, seed=2),
        record("sst2", "vanilla", 0.84, lr=1e-4, seed=1),
    ]
    page = Glue().page(records)
    assert by_heading(page, "t2")["SST-2"] == "**85.00 ± 7.07**"
    assert by_heading(page, "vanilla")["SST-2"] == "84.00"
    assert "Best rates: sst2: vanilla 0.0001, t2 1e-05." in page


def test_an_average_of_what_was_run_has_its_own_name() -> None:
    full = [record(task, "t2", 0.5) for task in TASKS if task != "rte"]
    page = Glue().page([*full, record("rte", "t2", 0.99), record("cola", "t1", 0.4)])
    assert by_heading(page, "t2")["AVG"] == f"{50 + 10 / 7:.2f}"  # 60 on the second set of MNLI; RTE does not count
    assert by_heading(page, "t1")["AVG"] == "–"
    page = Glue().page([each for each in full if each.task not in ("glue/qnli", "glue/qqp")])
    assert by_heading(page, "t2")["mean without QNLI, QQP"] == "52.00"
    assert "AVG" not in cells(page, "method")


def test_reduced_data_and_unconverged_models_are_seen() -> None:
    reduced = {**STAND_IN, "meta": {"differs_from_published": {"train": "27,718 of 392,702"}}}
    page = Glue().page([record("mnli", "t2", 0.6, data=reduced), record("cola", "t2", 0.0)])
    assert by_heading(page, "t2")["MNLI-m"] == "**60.00†**"
    assert by_heading(page, "t2")["CoLA"] == "**0.00**"
    assert "† mnli: not the published data, never compare with it (train has 27,718 of 392,702)." in page


def test_set_ups_have_tables_of_their_own(tmp_path: Path) -> None:
    assert locate("enwiki", record("rte", "t2", 0.5)) == ("t2", "rte")
    assert locate("wikitext103", record("rte", "t2", 0.5)) is None
    assert locate("wikitext103", record("rte", "t2", 0.5, preset="t2-mlm")) == ("t2", "rte")
    assert locate("enwiki", record("rte", "t2", 0.5).model_copy(update={"task": "lra/rte"})) is None
    assert summary(tmp_path) is None
    (tmp_path / "glue").mkdir()
    record("rte", "t2", 0.5).write(tmp_path / "glue")
    assert "50.00" in (summary(tmp_path) or "")
    assert set(TABLES) == set(Glue.setups)


def test_missing_data_says_where_to_get_them() -> None:
    with pytest.raises(ConfigError, match=r"data prepare glue/qnli --tokenizer roberta:GPT2 --source PATH") as raised:
        plan(Glue(), Selection(["t2"], ["qnli"], [1], "enwiki"), Path("runs"))
    assert "QNLI/ with train.tsv, dev.tsv, test.tsv (https://gluebenchmark.com/tasks)" in str(raised.value)


def test_from_weights_to_the_page(
    case: ReproduceCase, tmp_path: Path, glue_bpe: Path, glue_store: Callable[[str], Path]
) -> None:
    """One method, one task, four rates: pre-trained once, fine-tuned four times, no weights left but the first."""
    source = tmp_path / "enwiki"
    source.mkdir()
    article = " = Title {0} = \n" + "A good film of number {0}, and a bad one.\n" * 6
    (source / "train.txt").write_text("".join(article.format(number) for number in range(30)))
    (source / "valid.txt").write_text("".join(article.format(number) for number in range(30, 33)))
    case.data = tmp_path / "stores"
    prepare("enwiki", case.data / "mlm-enwiki", tokenizer=f"roberta:{glue_bpe}", source=source)
    (case.data / "cola").symlink_to(glue_store("cola"))
    size = ["model.num_hidden_layers=2", "model.num_attention_heads=2", "model.hidden_size=16"]
    theirs = [*size, "model.intermediate_size=24", "data.sequence_length=32", "train.steps=2", "optim.warmup_steps=1"]
    case.table = "glue"
    case.options = ["--setup", "enwiki", "--methods", "t2", "--tasks", "cola", "--seeds", "1", "glue.epochs=null"]
    case.options += [*size, *(f"mlm:{setting}" for setting in [*theirs, "train.batch_size=4"])]
    assert case.run() == 0, case.err
    records = read_records(case.results)
    assert [found.name for found in records] == sorted(f"cola-t2-enwiki-{rate}-1" for rate in RATES)
    assert {found.parent.name for found in records if found.parent} == {"mlm-enwiki-t2-42"}
    assert [found.config["optim"]["lr"] for found in records] == sorted(map(float, RATES), key=lambda rate: f"{rate:g}")
    assert all("optim.lr" not in found.changes and "model.init" not in found.changes for found in records)
    assert not list(case.runs.glob("cola-*/final")) + list(case.runs.glob("cola-*/checkpoints"))
    assert (case.runs / "mlm" / "mlm-enwiki-t2-42" / "final" / "model.safetensors").is_file()
    assert json.loads((case.runs / "cola-t2-enwiki-1e-5-1" / "result.json").read_text())["best"]
    best = max(found.score for found in records)
    assert by_heading((case.results / "README.md").read_text(), "t2")["CoLA"].strip("*†‡") == f"{best:.2f}"
    assert case.run() == 0
    assert "jobs: 4 of 4 finished, 0 to run" in case.out


def test_epochs_are_no_difference_from_the_recipe(
    tmp_path: Path, glue_store: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their number of steps depends on the store at hand, which is no change that a person made."""
    data = tmp_path / "stores"
    data.mkdir()
    (data / "cola").symlink_to(glue_store("cola"))
    monkeypatch.setattr(Glue, "parent", lambda *_: None)
    size = ["model.num_hidden_layers=2", "model.num_attention_heads=2", "model.hidden_size=16", "train.device=cpu"]
    jobs = plan(Glue(), Selection(["t2"], ["cola"], [1], "enwiki", data, size), tmp_path / "runs")
    assert [job.steps for job in jobs] == [8] * 4  # three epochs of 40 examples in batches of 16
    result = train(jobs[0].config, jobs[0].folder, show=False)
    found = record_of(jobs[0], result, ExampleStore.open(data / "cola"), None)
    assert found.changes == {"model.hidden_size": 16, "model.num_attention_heads": 2, "model.num_hidden_layers": 2}
    jobs[0].check_folder()  # the run has the very config that was planned
