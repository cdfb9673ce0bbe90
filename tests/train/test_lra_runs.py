"""Whole runs of the five tasks: they train, resume bit for bit, and score the test split once with the best weights."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from lra_files import SOURCES, lra_config
from tiny_run import evaluations, losses, stop_at, weights_hash

from transnormer.data.lra.prepare import prepare
from transnormer.errors import Preempted
from transnormer.step.evaluation import Evaluation
from transnormer.tasks.lra import LongRangeArena
from transnormer.train.loop import evaluate_run, resume, train


@pytest.mark.reliability("R4")
@pytest.mark.parametrize("task", SOURCES)
def test_each_task_trains_resumes_bit_for_bit_and_is_tested(lra_store, task: str, tmp_path: Path, monkeypatch) -> None:
    config = lra_config(task, lra_store(task))
    whole = train(config, tmp_path / "whole", show=False)
    stop_at(monkeypatch, 4)
    with pytest.raises(Preempted, match="after step 4"):
        train(config, tmp_path / "run", show=False)
    monkeypatch.undo()
    result = resume(tmp_path / "run", show=False)
    assert weights_hash(tmp_path / "run") == weights_hash(tmp_path / "whole")
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    assert evaluations(tmp_path / "run") == evaluations(tmp_path / "whole")
    assert [step for step, _ in evaluations(tmp_path / "run")] == [2, 4, 6]
    assert result["test"] == whole["test"]
    assert result["test"]["step"] == result["best"]["step"]
    assert result["test"]["split"] == "test"
    assert set(result["test"]["metrics"]) == {"loss", "accuracy"}
    assert resume(tmp_path / "run", show=False)["test"] == result["test"]
    again = evaluate_run(tmp_path / "run", "test", "best")
    assert again["metrics"] == result["test"]["metrics"]
    assert again["protocol"] == result["protocol"]


def chosen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Makes the first evaluation the best one, and lists the splits that are scored."""
    evaluate, metrics = Evaluation.sums, LongRangeArena.metrics
    splits: list[str] = []

    def noted(self, split, *arguments):
        splits.append(split)
        return evaluate(self, split, *arguments)

    def falling(self, sums):
        return {**metrics(self, sums), **({"accuracy": 1 / len(splits)} if splits[-1] == "valid" else {})}

    monkeypatch.setattr(Evaluation, "sums", noted)
    monkeypatch.setattr(LongRangeArena, "metrics", falling)
    return splits


def test_the_test_split_is_scored_once_with_the_best_weights(lra_store, tmp_path: Path, monkeypatch) -> None:
    splits = chosen(monkeypatch)
    result = train(lra_config("lra/image", lra_store("lra/image"), optim__lr=0.1), tmp_path / "run", show=False)
    assert splits == ["valid", "valid", "valid", "test"]
    assert (result["best"]["step"], result["test"]["step"]) == (2, 2)
    monkeypatch.undo()
    assert evaluate_run(tmp_path / "run", "test", "best")["metrics"] == result["test"]["metrics"]
    assert evaluate_run(tmp_path / "run", "test", "final")["metrics"] != result["test"]["metrics"]


def test_a_signal_while_the_test_split_is_scored(lra_store, tmp_path: Path, monkeypatch) -> None:
    config = lra_config("lra/text", lra_store("lra/text"))
    whole = train(config, tmp_path / "whole", show=False)
    evaluate = Evaluation.sums

    def interrupted(self, split, *arguments):
        if split == "test":
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(self, split, *arguments)

    monkeypatch.setattr(Evaluation, "sums", interrupted)
    with pytest.raises(Preempted, match="after step 6"):
        train(config, tmp_path / "run", show=False)
    assert not (tmp_path / "run" / "result.json").exists()
    monkeypatch.undo()
    result = resume(tmp_path / "run", show=False)
    assert result["test"] == whole["test"]
    assert weights_hash(tmp_path / "run") == weights_hash(tmp_path / "whole")
    assert evaluations(tmp_path / "run") == evaluations(tmp_path / "whole")


@pytest.mark.parametrize("task", ["lra/text", "lra/image"])
def test_compat_runs(lra_store, task: str, tmp_path: Path) -> None:
    result = train(lra_config(task, lra_store(task), lra__protocol="lra_compat"), tmp_path / "run", show=False)
    config = json.loads((tmp_path / "run" / "final" / "config.json").read_text())
    assert config["pooling"] == "padded_mean"
    assert result["protocol"].startswith("lra_compat: ")
    if task == "lra/text":
        assert result["test"]["metrics"] == result["best"]["metrics"]


def test_a_language_model_is_scored_on_both_splits(undisturbed: Path) -> None:
    result = json.loads((undisturbed / "result.json").read_text())
    assert (
        evaluate_run(undisturbed, "test", "best")["metrics"] == result["test"]["metrics"] != result["best"]["metrics"]
    )
    assert result["test"]["step"] == result["best"]["step"]


def test_a_model_learns_what_can_be_learned(tmp_path: Path) -> None:
    """Reviews that give their label away: a real run must find out."""
    folder = tmp_path / "reviews"
    folder.mkdir()
    for part in ("train", "test"):
        rows = [f"{number % 2}\t{'good' if number % 2 else 'bad'} film number {number}" for number in range(60)]
        (folder / f"{part}.tsv").write_text("\n".join(rows))
    store = prepare("lra/text", tmp_path / "store", source=folder)
    changes = {"train__steps": 40, "train__eval_every": 20, "train__batch_size": 16, "train__micro_batch_size": None}
    result = train(lra_config("lra/text", store, optim__lr=0.02, **changes), tmp_path / "run", show=False)
    assert result["test"]["metrics"]["accuracy"] > 0.95
