"""`transnormer reproduce recall`: its jobs differ in the pairs alone, and its table finds them by that."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from transnormer.cli.app import main
from transnormer.experiments.experiment import Selection, plan
from transnormer.experiments.paper.recall import PAIRS, Recall
from transnormer.models.presets import require_preset

TINY = [
    *("recall.sequence_length=40", "recall.train_examples=8", "recall.valid_examples=4", "model.hidden_size=16"),
    *("train.steps=2", "optim.warmup_steps=1", "train.batch_size=2", "train.eval_every=2", "train.device=cpu"),
]


def test_a_job_for_each_method_and_number_of_pairs(tmp_path: Path) -> None:
    table = Recall()
    chosen = Selection(["t2", "llama"], table.columns("mqar"), [1], "mqar")
    jobs = plan(table, chosen, tmp_path)
    assert [(job.row, job.config.recall.pairs) for job in jobs] == [
        (row, pairs) for row in ("t2", "llama") for pairs in PAIRS
    ]
    assert all(4 * job.config.recall.pairs <= job.config.recall.sequence_length for job in jobs)
    for row in table.rows:
        require_preset(f"{row}-tiny")
    assert len({job.config.optim.lr for job in jobs}) == 1
    assert "tried with llama alone: no comparison on equal terms" in table.page([])


def test_the_table_is_made_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSNORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ending:
        main(["reproduce", "recall", "--methods", "linear_elu", "--tasks", "pairs4,pairs8", "--seeds", "1", *TINY])
    assert not ending.value.code
    page = (tmp_path / "results" / "recall" / "README.md").read_text()
    records = [json.loads(file.read_text()) for file in sorted((tmp_path / "results" / "recall").glob("*.json"))]
    assert [record["config"]["recall"]["pairs"] for record in records] == [4, 8]
    shown = re.search(r"\| linear_elu.*", page).group()
    for record in records:
        assert f"{100 * record['test']['metrics']['accuracy']:.2f}" in shown
