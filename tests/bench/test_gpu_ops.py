"""The gate of the GPU benchmark, on the CPU: what is wrong is not timed, and what a peer does wrong is said."""

from __future__ import annotations

import os
from itertools import product

import pytest
import torch

from transnormer.bench import gpu_ops
from transnormer.bench.attention_ops import attention_op, folded_op
from transnormer.bench.cases import CASES, FULL_SOFTMAX
from transnormer.bench.ops import GateFailed


@pytest.fixture
def sets() -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    shape = (2, 128, 2, 16)
    return [
        [
            *(torch.randn(shape, generator=generator).requires_grad_() for _ in range(3)),
            torch.randn(shape, generator=generator),
        ]
    ]


@pytest.fixture
def here(monkeypatch):
    """No GPU: plain PyTorch stands in for the kernels, and every time is one."""
    calls = []

    def time(function, *, calls: int) -> float:
        function()
        return 1.0

    monkeypatch.setattr(gpu_ops, "attention_op", lambda case, backend: attention_op(case, "torch"))
    monkeypatch.setattr(gpu_ops, "folded_op", lambda case, backend: folded_op(case, "torch"))
    monkeypatch.setattr(gpu_ops, "graph_microseconds", time)
    monkeypatch.setattr(gpu_ops, "require_no_waiting", lambda step: calls.append(step()))
    return calls


@pytest.mark.parametrize("case", CASES)
def test_a_right_op_is_timed(case, sets, here):
    exact = gpu_ops._exact(case, sets[0])
    assert exact[0].dtype == torch.float64
    for name in (*gpu_ops.OURS, "torch", "sdpa"):
        row = gpu_ops._measure(name, case, sets, exact)
        if row is None:
            continue
        folded = name == gpu_ops.FOLDED  # a forward alone
        assert set(row["errors"]) == ({"o"} if folded else {"o", "dq", "dk", "dv"})
        assert max(row["errors"].values()) < 1e-5
        assert (row["forward_us"], row.get("forward_backward_us")) == (1.0, None if folded else 1.0)


def test_every_contender_is_compiled_ahead_once_and_failures_wait_for_the_measurement(monkeypatch):
    ran = []

    class Here:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def run(self, function, *what):
            assert function is gpu_ops.compile_contender
            ran.append(what)
            if "norm full" in what:
                raise RuntimeError("no such kernel")

    monkeypatch.setattr(gpu_ops, "Worker", Here)
    cases, shapes = ["norm causal", "norm full"], ["LM 64x512", "LM 16x2048"]
    gpu_ops.compile_ahead(cases, shapes, ["compile", "flex-tuned"], jobs=3)
    assert sorted(ran) == sorted(product((*gpu_ops.OURS, "compile"), cases, shapes))


def test_compiling_ahead_runs_what_is_measured(sets, here, monkeypatch):
    used = []
    monkeypatch.setattr(gpu_ops, "_input_sets", lambda shape, count: sets)
    for run in ("_results", "_inferred"):
        monkeypatch.setattr(gpu_ops, run, lambda op, inputs: used.append((op, inputs)))
    monkeypatch.setattr(gpu_ops, "tune_one_at_a_time", lambda: None)
    monkeypatch.setenv("FLA_CACHE_RESULTS", "1")
    for case, names in (
        ("norm causal", ["triton", "triton-folded", "torch"]),
        ("diag softmax causal", ["triton", "torch", "sdpa"]),
        (FULL_SOFTMAX, ["sdpa"]),
    ):
        for name in (*gpu_ops.OURS, "torch", "sdpa"):
            used.clear()
            gpu_ops.compile_contender(name, case, "LM 64x512")
            assert [inputs for _, inputs in used] == ([sets[0]] if name in names else [])
    assert os.environ["FLA_CACHE_RESULTS"] == "0"


def test_who_computes_what(sets, here):
    def contenders(case):
        exact = gpu_ops._exact(case, sets[0])
        return [name for name in (*gpu_ops.OURS, "torch", "sdpa") if gpu_ops._measure(name, case, sets, exact)]

    assert contenders("norm causal") == ["triton", "triton-folded", "torch"]
    assert contenders("diag softmax causal") == ["triton", "torch", "sdpa"]
    assert contenders(FULL_SOFTMAX) == ["sdpa"]


@pytest.mark.parametrize("case", ["norm causal", "diag rela full"])
def test_a_wrong_kernel_ends_the_benchmark(case, sets, here, monkeypatch):
    """Only the gradient of v is wrong, by a hundredth; with the norm folded, the sums of squares."""

    def off(op):
        return lambda q, k, v: op(q, k, v + 0.01 * (v - v.detach()))

    def folded(case, backend):
        def op(q, k, v):
            out, sums = folded_op(case, "torch")(q, k, v)
            return out, 1.02 * sums

        return op

    monkeypatch.setattr(gpu_ops, "attention_op", lambda case, backend: off(attention_op(case, "torch")))
    monkeypatch.setattr(gpu_ops, "folded_op", folded)
    exact = gpu_ops._results(attention_op(case, "torch"), [x.detach().double().requires_grad_() for x in sets[0]])
    for name, wrong in (("triton", "dv"), (gpu_ops.FOLDED, "o")):
        with pytest.raises(GateFailed, match=f"{case}, {name}: relative errors against float64.*'{wrong}': 0.0"):
            gpu_ops._measure(name, case, sets, exact)


def test_a_wrong_or_failing_peer_has_no_time(sets, here, monkeypatch):
    case = "norm causal"
    exact = gpu_ops._exact(case, sets[0])

    def raising(q, k, v):
        raise TypeError("no such thing\nas this")

    def full(q, k, v):
        raise torch.OutOfMemoryError("CUDA out of memory")

    for op, reason in (
        (lambda q, k, v: 1.1 * attention_op(case, "torch")(q, k, v), "errors against float64 above 2e-02"),
        (raising, "TypeError: no such thing"),
        (full, "out of memory"),
    ):
        monkeypatch.setitem(gpu_ops.PEERS, "sdpa", lambda case, length, op=op: op)
        row = gpu_ops._measure("sdpa", case, sets, exact)
        assert row["failed"] == reason
        assert "forward_us" not in row


def test_full_attention_is_checked_on_one_head(sets, here, monkeypatch):
    exact = gpu_ops._exact(FULL_SOFTMAX, sets[0])
    assert exact[0].shape == (1, 128, 1, 16)
    elsewhere = torch.ones(2, 1, 2, 1)
    elsewhere[0, 0, 0, 0] = 1.5  # the head that is looked at
    monkeypatch.setitem(
        gpu_ops.PEERS, "flex", lambda case, length: lambda *qkv: elsewhere * attention_op(case, "torch")(*qkv)
    )
    assert "errors against float64" in gpu_ops._measure("flex", FULL_SOFTMAX, sets, exact)["failed"]
