"""The two attentions on a GPU at language-model and Long-Range-Arena shapes, beside every peer that is installed.

Each op is timed with feature map and norm (`attention_ops`), after its output and gradients were held against float64.
Calls are captured in a CUDA graph over rotated inputs, so that neither launch gaps nor the cache flatter anyone; times
are medians of replays.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import torch
from torch import Tensor

from transnormer.bench.attention_ops import FoldedOp, Op, attention_op, folded_op, unfolded
from transnormer.bench.cases import FULL_SOFTMAX
from transnormer.bench.ops import GateFailed
from transnormer.bench.peers import PEERS, SEARCHING
from transnormer.bench.shapes import SHAPES, floor_microseconds
from transnormer.bench.timing import graph_microseconds
from transnormer.bench.tuning import tune_one_at_a_time
from transnormer.bench.worker import Worker
from transnormer.step.execution import describe, require_no_waiting

# Ours with its norm applied, and with its norm folded into the projection that follows: a forward without gradients.
FOLDED = "triton-folded"
OURS = ("triton", FOLDED)
# Ours must be as near as bfloat16 allows. A peer may round more often and still be a peer; a wrong one is far off.
_ALLOWED, _ALLOWED_PEER = 5e-3, 2e-2
# So many calls in one graph that its start does not show.
_CALLS = 24
_OUT_OF_MEMORY = "out of memory"
_Inferred = TypeVar("_Inferred")


def copy_bandwidth() -> float:
    """Bytes read and written per second by a large copy: the ceiling that the floors are counted from."""
    source = torch.randn(2**29, dtype=torch.bfloat16, device="cuda")
    target = torch.empty_like(source)
    # Not copy_: a graph gives that to a copy engine, which is slower than the multiprocessors.
    microseconds = graph_microseconds(lambda: torch.neg(source, out=target), calls=1)
    return 2 * source.nbytes / (microseconds * 1e-6)


def measure_gpu_ops(
    bandwidth: float, cases: list[str], shapes: list[str], peers: list[str]
) -> Iterator[dict[str, Any]]:
    """One row per case, shape and contender, as they are measured."""
    for case in cases:
        for shape in shapes:
            floor = floor_microseconds(shape, bandwidth)
            sets = _input_sets(shape)
            try:
                exact = _exact(case, sets[0])
            except torch.OutOfMemoryError:  # without a gate there is no number
                yield {"case": case, "shape": shape, "by": "float64", "failed": _OUT_OF_MEMORY}
                continue
            for name in [*OURS, *peers]:
                outcome = _measure(name, case, sets, exact)
                if outcome is not None:
                    yield _with_multiples({"case": case, "shape": shape, "by": name, **outcome}, floor)
                torch.cuda.empty_cache()


def compile_ahead(cases: list[str], shapes: list[str], peers: list[str], jobs: int) -> None:
    """Compile all contenders in several processes at once; the measurement finds their kernels on disk.

    Whatever goes wrong here goes wrong there again, where it is told.
    """
    waiting = SimpleQueue[tuple[str, str, str]]()
    for shape in shapes:
        for case in cases:
            for name in [*OURS, *(peer for peer in peers if peer not in SEARCHING)]:
                waiting.put((name, case, shape))

    def compile_some() -> None:
        with Worker() as worker:
            while True:
                try:
                    name, case, shape = waiting.get_nowait()
                except Empty:
                    return
                with suppress(Exception):
                    worker.run(compile_contender, name, case, shape)

    with ThreadPoolExecutor(jobs) as pool:
        for job in [pool.submit(compile_some) for _ in range(jobs)]:
            job.result()


def compile_contender(name: str, case: str, shape: str) -> None:
    """Run one implementation of a case once, forward and backward.

    This process is not alone: Inductor chooses kernels by time while no other one does, and what flash-linear-attention
    chooses is not kept; the measurement does that again.
    """
    tune_one_at_a_time()
    os.environ["FLA_CACHE_RESULTS"] = "0"
    torch.compiler.reset()
    inputs = _input_sets(shape, count=1)[0]
    if name == FOLDED:
        if (folded := folded_op(case, "triton")) is not None:
            _inferred(folded, inputs)
        return
    op = _ours(case) if name in OURS else PEERS[name](case, SHAPES[shape].length)
    if op is not None:
        _results(op, inputs)


def _with_multiples(row: dict[str, Any], floor: dict[str, float]) -> dict[str, Any]:
    return row | {f"{each}_x_floor": row[f"{each}_us"] / floor[each] for each in floor if f"{each}_us" in row}


def _input_sets(shape: str, count: int | None = None) -> list[list[Tensor]]:
    """q, k, v and the gradient of an output, several times: more than a cache can hold."""
    count = count or max(1, min(8, int(3e8 / (4 * SHAPES[shape].tensor_bytes)) + 1))
    random = partial(torch.randn, generator=torch.Generator("cuda").manual_seed(0), device="cuda")
    return [
        [
            *(random(SHAPES[shape], dtype=torch.bfloat16).requires_grad_() for _ in range(3)),
            random(SHAPES[shape], dtype=torch.bfloat16),
        ]
        for _ in range(count)
    ]


def _measure(name: str, case: str, sets: list[list[Tensor]], exact: list[Tensor]) -> dict[str, Any] | None:
    """Errors and times of a contender, or why it has none; None where it has no implementation of the case."""
    try:
        if name == FOLDED:
            return _measure_folded(case, sets, exact)
        return _measure_ours(name, case, sets, exact) if name in OURS else _measure_peer(name, case, sets, exact)
    except torch.OutOfMemoryError:
        return {"failed": _OUT_OF_MEMORY}


def _ours(case: str) -> Op | None:
    return None if case == FULL_SOFTMAX else attention_op(case, "triton")


def _measure_ours(name: str, case: str, sets: list[list[Tensor]], exact: list[Tensor]) -> dict[str, Any] | None:
    """A kernel of ours that is wrong ends the benchmark."""
    op = _ours(case)
    if op is None:
        return None
    errors = _errors(case, _results(op, sets[0]), exact)
    _gate(case, name, errors)
    return {"errors": errors, "forward_us": _forward_us(op, sets), "forward_backward_us": _both_us(op, sets)}


def _measure_folded(case: str, sets: list[list[Tensor]], exact: list[Tensor]) -> dict[str, Any] | None:
    """The forward alone; what is checked is the same with its norm applied."""
    op = folded_op(case, "triton")
    if op is None:
        return None
    errors = _errors(case, [_inferred(unfolded(op), sets[0])], exact[:1])
    _gate(case, FOLDED, errors)
    return {"errors": errors, "forward_us": _forward_us(op, sets)}


def _gate(case: str, name: str, errors: dict[str, float]) -> None:
    if not max(errors.values()) <= _ALLOWED:
        raise GateFailed(f"{case}, {name}: relative errors against float64 are {errors}, allowed are {_ALLOWED:.0e}")


def _measure_peer(name: str, case: str, sets: list[list[Tensor]], exact: list[Tensor]) -> dict[str, Any] | None:
    """Whatever somebody else's code raises is an outcome, and recorded as one."""
    torch.compiler.reset()  # every shape is compiled for itself: beyond a few, the compiler would refuse
    try:
        op = PEERS[name](case, sets[0][0].shape[1])
        if op is None:
            return None
        errors = _errors(case, _results(op, sets[0]), exact)
        if not max(errors.values()) <= _ALLOWED_PEER:
            return {"errors": errors, "failed": f"errors against float64 above {_ALLOWED_PEER:.0e}"}
        require_no_waiting(lambda: _results(op, sets[0]))
        return {"errors": errors, "forward_us": _forward_us(op, sets), "forward_backward_us": _both_us(op, sets)}
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001
        return {"failed": f"{type(error).__name__}: {describe(error)}"}


def _exact(case: str, inputs: list[Tensor]) -> list[Tensor]:
    """Output and gradients by the definition in float64."""
    wide = [_checked_part(case, x).detach().double().requires_grad_(x.requires_grad) for x in inputs]
    return _results(attention_op(case, "torch"), wide)


def _checked_part(case: str, x: Tensor) -> Tensor:
    """All of it, but one head of one sequence of full attention, whose matrix of scores would not fit in float64."""
    return x[:1, :, :1] if case == FULL_SOFTMAX else x


def _errors(case: str, found: list[Tensor], exact: list[Tensor]) -> dict[str, float]:
    """Relative errors of an output and, if they are among the results, of the gradients."""
    checked = [_checked_part(case, x).double() for x in found]
    return {
        name: float((a.reshape(b.shape) - b).norm() / b.norm())
        for name, a, b in zip(("o", "dq", "dk", "dv")[: len(exact)], checked, exact, strict=True)
    }


def _results(op: Op, inputs: list[Tensor]) -> list[Tensor]:
    """The output and the gradients of q, k and v."""
    q, k, v, gradient = inputs
    out = op(q, k, v)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), gradient.reshape(out.shape))]


@torch.no_grad()
def _inferred(op: Callable[..., _Inferred], inputs: list[Tensor]) -> _Inferred:
    """What an op returns without gradients."""
    return op(*inputs[:3])


def _forward_us(op: Op | FoldedOp, sets: list[list[Tensor]]) -> float:
    return _microseconds(partial(_inferred, op), sets)


def _both_us(op: Op, sets: list[list[Tensor]]) -> float:
    return _microseconds(partial(_results, op), sets)


def _microseconds(call: Callable[[list[Tensor]], object], sets: list[list[Tensor]]) -> float:
    """The time of one call, over all sets of inputs."""
    rounds = -(-_CALLS // len(sets))

    def step() -> None:
        for inputs in sets * rounds:
            call(inputs)

    return graph_microseconds(step, calls=len(sets) * rounds)
