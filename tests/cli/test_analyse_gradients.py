"""`transnormer analyse gradients`: bounds without a run, traces of runs, and a clear line for what is none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

FILES = {"svg", "png", "csv", "json"}


def test_bounds_need_no_run(cli: Callable, tmp_path: Path) -> None:
    done = cli("analyse", "gradients", "--out", tmp_path)
    assert done.code == 0, done.err
    assert {path.suffix[1:] for path in tmp_path.glob("gradient-bounds.*")} == FILES
    record = json.loads((tmp_path / "gradient-bounds.json").read_text())
    assert record["largest"]["softmax_dp"] == 0.25
    assert record["versions"]


def test_runs_with_and_without_layers(cli: Callable, finished_run: Path, store: Path, tiny, tmp_path: Path) -> None:
    layered = tmp_path / "layered"
    logging = ["train.log_layer_gradients=true", "train.log_every=1"]
    assert cli("train", "demo", "--out", layered, f"data.store={store}", *tiny, *logging).code == 0
    one_line = cli("analyse", "gradients", finished_run, "--out", tmp_path)  # 4 steps, of which the last is logged
    assert one_line.code == 5
    assert "1 logged step, and a deviation needs two" in one_line.err
    plain = tmp_path / "plain"
    assert cli("train", "demo", "--out", plain, f"data.store={store}", *tiny, "train.log_every=1").code == 0
    done = cli("analyse", "gradients", layered, plain, "--out", tmp_path)
    assert done.code == 0, done.err
    assert "layered: 4 logged steps, 1 to 4" in done.out
    assert "no layers in plain: train with train.log_layer_gradients=true" in done.out
    assert {path.suffix[1:] for path in tmp_path.glob("gradients.*")} == FILES
    layers, none = json.loads((tmp_path / "gradients.json").read_text())["runs"]
    assert list(layers["norms"]) == ["global", "embedding", "layer 1", "layer 2"]
    norm = layers["norms"]["layer 2"]
    shown = [line.split()[2:] for line in done.out.splitlines() if line.strip().startswith("layer 2")]
    assert shown == [[f"{norm['mean']:.3g}", f"{norm['relative_deviation']:.2f}"]]
    assert none["norms"] == {"global": layers["norms"]["global"]}  # the same run, logged otherwise


def test_a_run_without_a_journal_is_named(cli: Callable, finished_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished_run, tmp_path / "run")
    (run / "journal.jsonl").unlink()
    done = cli("analyse", "gradients", run)
    assert done.code == 5
    assert f"{run} has no journal" in done.err.replace("\n", "")
