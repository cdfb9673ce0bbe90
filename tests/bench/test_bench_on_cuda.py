"""The benchmarks where they are meant to run: graphs of whole steps, and kernels beside their peers."""

from __future__ import annotations

import pytest
import torch

from transnormer.bench import gpu_ops, shapes, speed
from transnormer.bench.cases import CASES, FULL_SOFTMAX, PACKED, PACKED_CASES
from transnormer.bench.ops_summary import summarise
from transnormer.bench.peers import able_peers
from transnormer.bench.speed_measurement import KINDS, Measurement, measure
from transnormer.step.execution import CannotRun, Execution

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


@pytest.mark.parametrize("setting", ["skyformer", "tiny"])
@pytest.mark.parametrize("method", ["t2", "vanilla"])
def test_a_whole_step_is_one_graph(method, setting):
    """Its loss and logits are held against eager PyTorch before it is timed (`speed_measurement`)."""
    for kind in KINDS:
        for compiled in (True, False):
            execution = Execution("cuda_graph", CUDA, bf16=True, compiled=compiled)
            numbers = measure(Measurement(setting, method, 256, kind, execution))
            assert numbers["steps_per_second"] > 0
            assert numbers["peak_bytes"] > 0
            assert ("tokens_per_second" in numbers) == (setting == "tiny" and kind == "train")


def test_nothing_stays_behind():
    """A measurement frees its graph, compiled code and memory."""
    sizes = []
    for _ in range(2):
        measure(Measurement("skyformer", "t2", 256, "train", Execution("cuda_graph", CUDA, bf16=True)))
        torch.cuda.synchronize()
        sizes.append(torch.cuda.memory_reserved())
    assert sizes[1] <= sizes[0] + 2**21


def test_a_step_that_waits_is_refused_and_does_no_harm():
    x = torch.ones(4, device=CUDA)

    def waits():
        return x * float(x.sum())

    graph = Execution("cuda_graph", CUDA, compiled=False)
    with pytest.raises(CannotRun, match="waits for the GPU"):
        graph.prepare(waits)
    replay = graph.prepare(lambda: x + torch.rand_like(x))
    assert not torch.equal(replay().clone(), replay())


def test_rows_say_how_they_were_run():
    (row,) = speed.measure_speed("skyformer", ["t2"], [256], CUDA, execution="cuda_graph", limit=3000)
    assert row["train_execution"] == "cuda_graph", row.get("train_instead_of")
    assert row["inference_execution"] == "cuda_graph", row.get("inference_instead_of")


@pytest.mark.parametrize("case", CASES)
def test_kernels_beside_their_peers(case, monkeypatch):
    monkeypatch.setitem(shapes.SHAPES, "small", shapes.Shape(2, 256, 2, 64))
    peers = [name for name in able_peers(None) if name != "flex-tuned"]  # minutes of tuning
    apart = [case.removesuffix(PACKED)] if case in PACKED_CASES else []
    rows = list(gpu_ops.measure_gpu_ops(4e12, [*apart, case], ["small"], peers))
    expected = {"sdpa", "flex"} if case == FULL_SOFTMAX else {"triton", "torch", "compile"}
    assert {row["by"] for row in rows} >= expected
    for row in rows:
        # cuDNN may be missing; whatever has a time has passed its gate.
        assert "failed" in row or (row["forward_us"] > 0 and max(row["errors"].values()) <= 2e-2)
        assert "failed" not in row or row["by"] not in ("triton", "triton-folded", "torch", "compile", "flex")
    for entry in summarise(rows, 4e12):
        assert entry["forward"]["best_peer"] is not None
