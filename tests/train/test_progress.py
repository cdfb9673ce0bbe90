"""The time that is left, from the time that steps took."""

from __future__ import annotations

import pytest

from transnormer.train import progress
from transnormer.train.progress import ProgressDisplay


def test_preparation_is_no_time_of_a_step(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    display = ProgressDisplay(total_steps=100, step=0, show=None)
    now[0] += 60  # compiling
    display.leave_out(60)
    now[0] += 20
    display.train({"step": 10, "loss": 1.0, "lr": 0.1, "grad_norm": 1.0, "tokens_per_second": 5.0})
    assert "3:00 left" in capsys.readouterr().out
