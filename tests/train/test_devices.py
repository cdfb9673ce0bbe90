"""The same run compiled, and on a GPU: other machines, other numerics, the same files and the same promises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_run import STEPS, losses, stop_at, tiny_config

from transnormer.errors import Preempted
from transnormer.train.loop import evaluate_run, resume, train


@pytest.mark.slow
def test_a_compiled_run_learns_the_same_and_resumes(store: Path, tmp_path: Path, monkeypatch) -> None:
    plain = tiny_config(store, model__dropout=0.0)
    train(plain, tmp_path / "plain", show=False)
    compiled = tiny_config(store, model__dropout=0.0, train__execution="compile")
    stop_at(monkeypatch, 5)
    with pytest.raises(Preempted):
        train(compiled, tmp_path / "compiled", show=False)
    monkeypatch.undo()
    resume(tmp_path / "compiled", show=False)
    for (step, loss), (same_step, expected) in zip(
        losses(tmp_path / "compiled"), losses(tmp_path / "plain"), strict=True
    ):
        assert step == same_step
        assert loss == pytest.approx(expected, rel=1e-3)
    names = [set(load_file(tmp_path / run / "final" / "model.safetensors")) for run in ("plain", "compiled")]
    assert names[0] == names[1]


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["auto", "float32"])
def test_a_run_on_a_gpu_resumes_where_it_was(precision: str, store: Path, tmp_path: Path, monkeypatch) -> None:
    config = tiny_config(store, train__device="auto", train__precision=precision)
    whole = train(config, tmp_path / "whole", show=False)
    assert whole["device"] == "cuda"
    assert whole["precision"] == ("bf16" if precision == "auto" else "float32")
    stop_at(monkeypatch, 5)
    with pytest.raises(Preempted):
        train(config, tmp_path / "run", show=False)
    monkeypatch.undo()
    optimizer = load_file(tmp_path / "run" / "checkpoints" / "step-00000005" / "optimizer.safetensors")
    assert {tensor.dtype for tensor in optimizer.values()} == {torch.float32}
    resume(tmp_path / "run", show=False)
    assert [step for step, _ in losses(tmp_path / "run")] == list(range(1, STEPS + 1))
    for (_, loss), (_, expected) in zip(losses(tmp_path / "run"), losses(tmp_path / "whole"), strict=True):
        assert loss == pytest.approx(expected, rel=1e-4)
    scored = evaluate_run(tmp_path / "run")["metrics"]["loss"]
    recorded = json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]["loss"]
    # Training scored with compiled code, which rounds to bfloat16 in other places.
    assert scored == pytest.approx(recorded, rel=1e-4 if precision == "float32" else 1e-3)


@pytest.mark.gpu
def test_a_gpu_and_a_cpu_learn_the_same(store: Path, tmp_path: Path) -> None:
    for device in ("cuda", "cpu"):
        config = tiny_config(store, train__device=device, train__precision="float32", model__dropout=0.0)
        assert train(config, tmp_path / device, show=False)["device"] == device
    for (_, loss), (_, expected) in zip(losses(tmp_path / "cuda"), losses(tmp_path / "cpu"), strict=True):
        assert loss == pytest.approx(expected, rel=1e-3)
