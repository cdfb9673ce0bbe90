"""Time and memory of the two attentions over the length on a CPU, forward and backward: both must grow linearly."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transnormer.bench.timing import median_seconds
from transnormer.errors import TransNormerError
from transnormer.ops import diag_attention, norm_attention
from transnormer.ops.backend import explain
from transnormer.ops.diag_attention.reference import diag_attention_reference
from transnormer.ops.norm_attention.reference import norm_attention_reference

BATCH, HEADS, HEAD_DIM = 1, 8, 64  # the heads of the paper's language model
_CLEAR_REFS = Path("/proc/self/clear_refs")
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], dict[str, Any]]] = {
    "norm_attention causal": (norm_attention, norm_attention_reference, {"causal": True}),
    "norm_attention full": (norm_attention, norm_attention_reference, {"causal": False}),
    "diag_attention softmax causal": (diag_attention, diag_attention_reference, {"causal": True}),
    "diag_attention rela causal": (diag_attention, diag_attention_reference, {"causal": True, "kind": "rela"}),
}


class GateFailed(TransNormerError):
    """The implementation to be timed does not compute what it should; no number is printed."""


def measure_ops(lengths: list[int]) -> Iterator[dict[str, Any]]:
    """One row per op and length, as they are measured."""
    for case in CASES:
        choice = explain(case.split()[0])
        _check(case)
        for length in lengths:
            step = _forward_backward(case, length)
            yield {
                "case": case,
                "length": length,
                "seconds": median_seconds(step, torch.device("cpu"), repeats=21, at_least=1.0),
                "peak_bytes": _peak_bytes_in_child(case, length),
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


def _peak_bytes_in_child(case: str, length: int) -> int | None:
    """The CPU has no allocator to ask: a fresh process tells how far its resident memory rose (Linux only)."""
    if not _CLEAR_REFS.exists():
        return None
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_rise_of_resident_memory, (case, length))


def _rise_of_resident_memory(case: str, length: int) -> int:
    step = _forward_backward(case, length)
    # A small step first: what the libraries take once is not the op's.
    _forward_backward(case, 256)()
    _CLEAR_REFS.write_text("5")  # the peak starts again at what is resident now
    before = _resident_bytes("VmRSS")
    step()
    return _resident_bytes("VmHWM") - before


def _resident_bytes(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024
