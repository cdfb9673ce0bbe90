"""`resume RUN train.steps=N`: a run trains longer, as if it had been asked to from the start, and says what changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tiny_run import STEPS, evaluations, journal_lines, losses, stop_at, tiny_config, weights_hash

from transnormer.config.load import read_config
from transnormer.errors import ConfigError, Preempted
from transnormer.step.schedules import learning_rate
from transnormer.train.loop import evaluate_run, resume, train

LONGER = STEPS + 6


@pytest.fixture
def run(undisturbed: Path, tmp_path: Path) -> Path:
    return shutil.copytree(undisturbed, tmp_path / "run")


def test_a_finished_run_that_goes_on_equals_a_longer_one(store: Path, tmp_path: Path) -> None:
    """Where the schedule has no length, to the bit."""
    constant = {"optim__schedule": "constant"}
    train(tiny_config(store, train__steps=LONGER, **constant), tmp_path / "whole", show=False)
    train(tiny_config(store, **constant), tmp_path / "run", show=False)
    result = resume(tmp_path / "run", [f"train.steps={LONGER}"], show=False)
    assert result["steps"] == LONGER
    assert weights_hash(tmp_path / "run") == weights_hash(tmp_path / "whole")
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    assert evaluations(tmp_path / "run") == evaluations(tmp_path / "whole")
    assert evaluate_run(tmp_path / "run")["step"] == LONGER
    assert resume(tmp_path / "run", show=False) == json.loads((tmp_path / "run" / "result.json").read_text())


def test_the_schedule_is_of_the_new_length_from_there_on(run: Path) -> None:
    before = read_config(run / "config.yaml")
    resume(run, [f"train.steps={LONGER}", "train.log_every=2"], show=False)
    optim = before.optim
    rates = {line["step"]: line["lr"] for line in journal_lines(run, "train")}
    assert [*rates] == [*range(1, STEPS + 1), *range(STEPS + 2, LONGER + 1, 2)]
    assert rates[STEPS] == learning_rate(optim, STEPS, STEPS - 1)
    assert rates[STEPS + 2] == learning_rate(optim, LONGER, STEPS + 1)
    told = [line["text"] for line in journal_lines(run, "changed")]
    assert told[:2] == ["train.log_every was 1, is 2 after step 12", "train.steps was 12, is 18 after step 12"]
    assert told[2].startswith("the learning rate was at its end, and goes on as in a run of 18 steps: 0.00")
    text = (run / "config.yaml").read_text()
    assert [line[2:] for line in text.splitlines() if line.startswith("#")] == told
    assert read_config(run / "config.yaml").train.steps == LONGER
    resume(run, [f"train.steps={LONGER + 1}"], show=False)
    assert "# train.steps was 12, is 18 after step 12" in (run / "config.yaml").read_text()


def test_the_earlier_result_stays_until_there_is_a_new_one(run: Path, monkeypatch, capsys) -> None:
    kept = {name: (run / name).read_bytes() for name in ("result.json", "final/model.safetensors")}
    stop_at(monkeypatch, STEPS + 2)
    with pytest.raises(Preempted):
        resume(run, [f"train.steps={LONGER}"], show=False)
    monkeypatch.undo()
    assert {name: (run / name).read_bytes() for name in kept} == kept
    assert evaluate_run(run)["step"] == STEPS
    assert resume(run, show=False)["steps"] == LONGER  # without the key: it is in the config now
    assert not any((run / name).read_bytes() == content for name, content in kept.items())
    assert [path.name for path in run.iterdir() if path.name.startswith(".tmp-")] == []


def test_an_unfinished_run_may_end_earlier_but_not_before_what_is_done(
    store: Path, tmp_path: Path, monkeypatch
) -> None:
    stop_at(monkeypatch, 7)
    with pytest.raises(Preempted):
        train(tiny_config(store), tmp_path / "run", show=False)
    monkeypatch.undo()
    untouched = (tmp_path / "run" / "config.yaml").read_bytes()
    with pytest.raises(ConfigError, match=r"train.steps=6: .* has made 7 steps already"):
        resume(tmp_path / "run", ["train.steps=6"], show=False)
    assert (tmp_path / "run" / "config.yaml").read_bytes() == untouched
    assert resume(tmp_path / "run", ["train.steps=7"], show=False)["steps"] == 7


def test_what_a_step_computes_cannot_change(run: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.name != "lock"}
    for override in ("optim.lr=1e-4", "seed=1", "model.dropout=0.2", "train.batch_size=8", "data.sequence_length=16"):
        with pytest.raises(ConfigError, match=rf"^{override.partition('=')[0]}: cannot change") as caught:
            resume(run, ["train.steps=20", override], show=False)
        assert f"model.init={run}" in str(caught.value.hint)
    for override, word in (
        ("train.stepz=20", "train.steps"),
        ("train.steps", "key=value"),
        ("train.steps=x", "integer"),
    ):
        with pytest.raises(ConfigError, match=word):
            resume(run, [override], show=False)
    with pytest.raises(ConfigError, match="has made 12 steps already"):
        resume(run, ["train.steps=11"], show=False)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.name != "lock"} == before


def test_a_run_without_its_checkpoints_is_not_started_over(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(ConfigError, match="its checkpoints, from which it could go on, are gone"):
        resume(run, ["train.steps=20"], show=False)
    assert (run / "result.json").is_file()
