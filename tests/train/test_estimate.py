"""What is said about a run that takes long, and from which step on."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from tiny_run import tiny_config, tiny_store

from transnormer.config.load import overridden
from transnormer.train import estimate
from transnormer.train.loop import train
from transnormer.train.progress import ProgressDisplay, in_a_line, in_hours


def test_what_to_type_ends_within_the_hour(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, train__steps=5000)
    run = tmp_path / "my run"
    text = estimate.warning(config, run, 10, 9.0)
    assert text is not None
    assert "12:28:30 more" in text
    *_, verb, folder, steps = shlex.split(text.partition("type: ")[2])
    assert (verb, folder) == ("resume", str(run))
    assert 9.0 * (overridden(config, [steps]).train.steps - 10) <= 3600
    assert estimate.warning(config, run, 10, 0.5) is None


def test_no_end_inside_the_warm_up_is_proposed(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, train__steps=5000, optim={"warmup_steps": 400})
    text = estimate.warning(config, tmp_path, 10, 100.0)
    assert text is not None
    assert "smaller model.preset" in text


def test_a_run_warns_once_and_shows_time_left_from_its_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(estimate, "LONG", 1e-9)
    train(tiny_config(tiny_store(tmp_path), train__log_every=6), tmp_path / "run")
    lines = capsys.readouterr().out.splitlines()
    steps = [line for line in lines if line.startswith("step ") and "loss" in line and "left" in line]
    assert steps[0].startswith("step 1/12  loss ")
    assert len([line for line in lines if "this takes about" in line]) == 1
    assert " on cpu with 1 thread (" in lines[0]


def test_a_log_of_slow_steps_is_not_silent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = [0.0]
    monkeypatch.setattr("transnormer.train.progress.time.perf_counter", lambda: clock[0])
    display = ProgressDisplay(5000, 0, None)
    line = {"loss": 9.0, "lr": 1e-3, "grad_norm": 1.0, "tokens_per_second": 1700.0}
    for step in range(1, 6):
        clock[0] += 20.0
        display.step({**line, "step": step})
    shown = [text.split()[1] for text in capsys.readouterr().out.splitlines()]
    assert shown == ["1/5000", "3/5000", "5/5000"]


def test_a_bar_of_80_columns_has_loss_and_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    display = ProgressDisplay(100_000, 0, True)
    display.train({"step": 1, "loss": 9.0, "lr": 1e-3, "grad_norm": 1.0, "tokens_per_second": 1700.0})
    display.close()
    last = capsys.readouterr().out
    assert "loss 9.0000" in last
    assert " left" in last
    assert "…" not in last


def test_word_perplexities_of_bytes_are_not_in_a_line() -> None:
    metrics = {"perplexity": 12.5, "word_perplexity": 3.4e9, "bits_per_byte": 3.6}
    assert in_a_line(metrics) == "perplexity 12.5  bits_per_byte 3.6"
    assert in_a_line({"word_perplexity": 31.01}) == "word_perplexity 31.01"


def test_hours() -> None:
    assert [in_hours(seconds) for seconds in (59.6, 61, 3600, 90_061)] == ["1:00", "1:01", "1:00:00", "25:01:01"]
