"""`transnormer analyse recall`: loss by position of causal runs on one text, and a clear line for anything else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tiny_run import tiny_store


def test_two_runs_side_by_side(cli: Callable, finished_run: Path, store: Path, tiny, tmp_path: Path) -> None:
    other = tmp_path / "llama"
    preset = "model.preset=llama-tiny"
    assert cli("train", "demo", "--out", other, f"data.store={store}", *tiny, preset).code == 0
    done = cli("analyse", "recall", finished_run, other, "--out", tmp_path / "out", "--windows", 3)
    assert done.code == 0, done.err
    assert "llama: 3 windows of 32 tokens, valid" in done.out
    rows = [line.split() for line in done.out.splitlines() if line.strip()[:1].isdigit()]
    assert [row[0] for row in rows[:4]] == ["1", "2", "3-4", "5-8"]
    assert {len(number.partition(".")[2]) for row in rows for number in row[1:]} == {3}
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".svg", ".png", ".csv", ".json"}
    record = json.loads((tmp_path / "out" / "recall.json").read_text())
    assert [(run["run"], len(run["loss_by_position"])) for run in record["runs"]] == [("run", 32), ("llama", 32)]


def test_runs_of_other_tasks_and_other_texts(
    cli: Callable, finished_run: Path, masked_run: Path, tiny, tmp_path: Path
) -> None:
    done = cli("analyse", "recall", masked_run)
    assert done.code == 2
    assert "is a run of masked_lm, which has no loss at each position" in done.err
    lra = tmp_path / "lra"
    lra.mkdir()
    (lra / "config.yaml").write_text("task: lra/listops\nmodel: {preset: t2-lra-listops}\n")
    done = cli("analyse", "recall", lra)
    assert done.code == 2
    assert "is a run of lra/listops" in done.err
    other = tmp_path / "other"
    assert cli("train", "demo", "--out", other, f"data.store={tiny_store(tmp_path)}", *tiny).code == 0
    done = cli("analyse", "recall", finished_run, other)
    assert done.code == 2
    assert "have different data" in done.err
