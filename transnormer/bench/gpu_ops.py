"""The two attentions on a GPU at language-model and Long-Range-Arena shapes: time, multiple of the memory floor, peers.

Each op is timed whole: feature map, attention, and the norm over the joined heads where the method has one. Calls are
captured in a CUDA graph over rotated inputs, so that neither launch gaps nor the cache flatter anyone.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transnormer.bench.ops import GateFailed
from transnormer.ops import diag_attention, norm_attention, rms_norm

# batch, length, heads, head size
SHAPES = {
    "LM 64x512": (64, 512, 8, 64),
    "LM 16x2048": (16, 2048, 8, 64),
    "LM 4x8192": (4, 8192, 8, 64),
    "LM 1x32768": (1, 32768, 8, 64),
    "LLM 4x8192": (4, 8192, 16, 128),
    "LRA 16x1024": (16, 1024, 2, 32),
    "LRA 16x4096": (16, 4096, 2, 32),
}
Op = Callable[[Tensor, Tensor, Tensor], Tensor]


def _joined_norm(out: Tensor, backend: str | None) -> Tensor:
    return rms_norm(out.flatten(-2), backend=backend)


def _whole_ops(backend: str | None) -> dict[str, Op]:
    """Every op as a mixer uses it, on one backend."""

    def norm(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        out = norm_attention(q, k, v, causal=causal, backend=backend)
        assert isinstance(out, Tensor)
        return _joined_norm(out, backend)

    return {
        "norm causal": lambda q, k, v: norm(q, k, v, causal=True),
        "norm full": lambda q, k, v: norm(q, k, v, causal=False),
        "diag softmax causal": lambda q, k, v: diag_attention(q, k, v, causal=True, backend=backend),
        "diag rela causal": lambda q, k, v: _joined_norm(
            diag_attention(q, k, v, causal=True, kind="rela", backend=backend), backend
        ),
    }


def _full_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def contenders() -> dict[str, dict[str, Op]]:
    """Ours, the same in plain PyTorch, and full softmax attention, which all of these stand in for."""
    plain = _whole_ops("torch")
    rivals = {case: {"triton": op, "torch": plain[case]} for case, op in _whole_ops("triton").items()}
    rivals["full softmax causal"] = {"sdpa": _full_softmax}
    return rivals


def copy_bandwidth() -> float:
    """Bytes read and written per second by a large copy: the ceiling that the floors are counted from."""
    source = torch.randn(2**29, dtype=torch.bfloat16, device="cuda")
    target = torch.empty_like(source)
    # Not copy_: a graph gives that to a copy engine, which is slower than the multiprocessors.
    microseconds = _graph_microseconds(lambda: torch.neg(source, out=target), calls=1)
    return 2 * source.nbytes / (microseconds * 1e-6)


def measure_gpu_ops(bandwidth: float, shapes: list[str]) -> Iterator[dict[str, Any]]:
    """One row per case, shape and contender, as they are measured."""
    for case, implementations in contenders().items():
        for shape in shapes:
            tensor_bytes = 2 * torch.Size(SHAPES[shape]).numel()
            floor = 4 * tensor_bytes / bandwidth * 1e6, 11 * tensor_bytes / bandwidth * 1e6
            sets = _input_sets(shape, tensor_bytes)
            for name, op in implementations.items():
                row: dict[str, Any] = {"case": case, "shape": shape, "by": name}
                try:
                    if name == "triton":
                        row["errors"] = _check(case, op, implementations["torch"], sets[0])
                    row |= _time(op, sets, floor)
                except torch.OutOfMemoryError:
                    row["out_of_memory"] = True
                torch.cuda.empty_cache()
                yield row


def _input_sets(shape: str, tensor_bytes: int) -> list[list[Tensor]]:
    """Several sets of q, k, v and an output gradient, together larger than the cache where that is cheap."""
    count = max(1, min(8, int(3e8 / (4 * tensor_bytes)) + 1))
    generator = torch.Generator("cuda").manual_seed(0)
    return [
        [
            torch.randn(SHAPES[shape], generator=generator, device="cuda", dtype=torch.bfloat16).requires_grad_()
            for _ in range(4)
        ]
        for _ in range(count)
    ]


def _check(case: str, op: Op, plain: Op, inputs: list[Tensor]) -> dict[str, float]:
    """The gate: output and gradients within 5e-3 of float32."""
    wide = [x.detach().float().requires_grad_() for x in inputs]
    ours = _results(op, inputs)
    exact = _results(plain, wide)
    errors = {
        name: float((a.float() - b).norm() / b.norm())
        for name, a, b in zip(("o", "dq", "dk", "dv"), ours, exact, strict=True)
    }
    if not max(errors.values()) <= 5e-3:
        raise GateFailed(f"{case}: relative errors against float32 are {errors}, allowed are 5e-3")
    return errors


def _results(op: Op, inputs: list[Tensor]) -> list[Tensor]:
    q, k, v, gradient = inputs
    out = op(q, k, v)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), gradient.detach().reshape(out.shape))]


def _time(op: Op, sets: list[list[Tensor]], floor: tuple[float, float]) -> dict[str, float]:
    def forward() -> None:
        with torch.no_grad():
            for q, k, v, _ in sets:
                op(q, k, v)

    def forward_backward() -> None:
        for inputs in sets:
            _results(op, inputs)

    ahead = _graph_microseconds(forward, calls=len(sets))
    both = _graph_microseconds(forward_backward, calls=len(sets))
    return {
        "forward_us": ahead,
        "forward_backward_us": both,
        "forward_x_floor": ahead / floor[0],
        "forward_backward_x_floor": both / floor[1],
    }


def _graph_microseconds(function: Callable[[], object], *, calls: int, repeats: int = 15) -> float:
    """Median time of one of the `calls` that `function` makes, from replays of a graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    graph.replay()
    times = []
    for _ in range(repeats):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) * 1e3 / calls)
    return statistics.median(times)
