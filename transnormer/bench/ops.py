"""Time and memory of the two attentions over the length on a CPU, forward and backward: both must grow linearly."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from transnormer.allocator import keep_freed_memory
from transnormer.bench.timing import median_seconds
from transnormer.errors import TransNormerError
from transnormer.ops import diag_attention, norm_attention
from transnormer.ops.backend import explain
from transnormer.ops.diag_attention.reference import diag_attention_reference
from transnormer.ops.norm_attention.reference import norm_attention_reference

BATCH, HEADS, HEAD_DIM = 1, 8, 64  # the heads of the paper's language model
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], dict[str, Any]]] = {
    "norm_attention causal": (norm_attention, norm_attention_reference, {"causal": True}),
    "norm_attention full": (norm_attention, norm_attention_reference, {"causal": False}),
    "diag_attention softmax causal": (diag_attention, diag_attention_reference, {"causal": True}),
    "diag_attention rela causal": (diag_attention, diag_attention_reference, {"causal": True, "kind": "rela"}),
}


class GateFailed(TransNormerError):
    """The implementation to be timed does not compute what it should; no number is printed."""


def measure_ops(lengths: list[int]) -> Iterator[dict[str, Any]]:
    """One row per op and length, as they are measured; memory is kept as in training."""
    keep_freed_memory()
    for case in CASES:
        choice = explain(case.split()[0])
        _check(case)
        for length in lengths:
            step = _forward_backward(case, length)
            yield {
                "case": case,
                "length": length,
                "seconds": median_seconds(step, torch.device("cpu"), repeats=21, at_least=1.0),
                "peak_bytes": _peak_bytes(step),
                "dtype": "float32",
                "backend": choice.backend,
            }


def _inputs(length: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (BATCH, length, HEADS, HEAD_DIM)
    return [torch.randn(shape, generator=generator).requires_grad_() for _ in range(3)]


def _check(case: str) -> None:
    """The gate: the timed path agrees with the definition in float64, as closely as float32 allows."""
    function, reference, options = CASES[case]
    inputs = _inputs(200)
    out = function(*inputs, **options)
    expected = reference(*(x.detach().double() for x in inputs), **options)
    expected = expected[0] if isinstance(expected, tuple) else expected
    error = (out.double() - expected).norm() / expected.norm()
    if not error <= 1e-5:
        raise GateFailed(f"{case}: relative error {error:.2e} against the definition, allowed are 1e-05")


def _forward_backward(case: str, length: int) -> Callable[[], None]:
    function, _, options = CASES[case]
    inputs = _inputs(length)
    gradient = torch.ones_like(inputs[2])

    def step() -> None:
        torch.autograd.grad(function(*inputs, **options), inputs, gradient)

    return step


def _peak_bytes(step: Callable[[], object]) -> int:
    """The most bytes of tensors that a step adds at one time, from every allocation that PyTorch makes in it.

    How far the memory of the process rises says less: the system rounds it, and freed memory is used again.
    """
    with _silent_stderr(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    changes = [event for event in events if event.get("name") == "[memory]"]
    changes.sort(key=lambda event: event["ts"])
    return max(accumulate((event["args"]["Bytes"] for event in changes), initial=0))


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """PyTorch's profiler announces its start and its end there, and no setting keeps it from that."""
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
