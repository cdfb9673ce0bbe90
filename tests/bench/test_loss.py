"""The benchmark of vocabularies: its rows, its gate, its record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from transnormer.bench import loss
from transnormer.bench.ops import GateFailed
from transnormer.cli.bench import app


def test_a_row_for_each_vocabulary_and_a_record(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(loss.TOKENS, "cpu", 32)
    out = tmp_path / "loss.json"
    done = CliRunner().invoke(app, ["loss", "--vocabularies", "100,259", "--out", str(out)])
    assert done.exit_code == 0, done.output
    record = json.loads(out.read_text())
    assert [row["vocabulary"] for row in record["rows"]] == [100, 259]
    for row in record["rows"]:
        assert row["microseconds_a_column"] == pytest.approx(1e3 * row["milliseconds"] / row["vocabulary"])


def test_a_wrong_loss_is_not_timed(monkeypatch) -> None:
    right = loss.linear_cross_entropy
    monkeypatch.setattr(loss, "linear_cross_entropy", lambda *call: 1.01 * right(*call))
    monkeypatch.setitem(loss.TOKENS, "cpu", 32)
    with pytest.raises(GateFailed, match="a vocabulary of 100: relative error"):
        next(loss.measure_loss([100], torch.device("cpu")))
