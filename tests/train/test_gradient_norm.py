"""The deviation of the gradient norm, reckoned from a journal by hand; test_loop.py resumes runs that have one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from transnormer.journal import Journal
from transnormer.train.gradient_norm import gradient_norm


def test_over_all_logged_steps(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    for step, norm in enumerate([1.0, 3.0, 8.0], start=1):
        journal.append({"kind": "train", "step": step, "loss": 1.0, "grad_norm": norm, "tokens": 1})
    journal.append({"kind": "eval", "step": 3, "split": "valid", "metrics": {"loss": 1.0, "grad_norm": 100.0}})
    found = gradient_norm(journal.path, nonfinite=2)
    assert found is not None
    assert found == {
        "steps": 3,
        "mean": 4.0,
        "relative_deviation": pytest.approx(np.std([1, 3, 8]) / 4),
        "nonfinite": 2,
    }


def test_without_a_logged_step_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text("")
    assert gradient_norm(tmp_path / "journal.jsonl", 0) is None


@pytest.mark.parametrize("norm", [float("inf"), float("nan")])
def test_a_norm_that_is_not_finite_is_not_hidden(tmp_path: Path, norm: float) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    for step, each in enumerate([1.0, norm], start=1):
        journal.append({"kind": "train", "step": step, "loss": 1.0, "grad_norm": each, "tokens": 1})
    found = gradient_norm(journal.path, nonfinite=0)
    assert found is not None
    assert found["steps"] == 2
    assert not np.isfinite(found["mean"])
    assert np.isnan(found["relative_deviation"])
