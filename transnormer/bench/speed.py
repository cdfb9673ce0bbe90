"""The paper's speed table: training and inference steps per second of every method over the length, in one run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any, TypeVar

import torch

from transnormer.bench.ops import GateFailed
from transnormer.bench.settings import setting_named
from transnormer.bench.speed_measurement import (
    KINDS,
    OUT_OF_MEMORY,
    Measurement,
    check_model,
    measure,
    parameters,
    prepare,
)
from transnormer.bench.worker import Worker, WorkerLost
from transnormer.errors import ConfigError
from transnormer.step.execution import CannotRun, Execution

T = TypeVar("T")
R = TypeVar("R")
Note = Callable[[str], None]
# By method, kind and execution: why it is not tried at further lengths.
GivenUp = dict[tuple[str, str, Execution], str]
_ABOUT = {"eager": "", "compile": ", torch.compile", "cuda_graph": ", torch.compile, a step is one CUDA graph"}


def executions_of(name: str, device: torch.device) -> tuple[Execution, ...]:
    """What `name` tries on a device, in this order; a row says which one it came to, and why not those before it."""
    if name == "cuda_graph" and device.type != "cuda":
        raise ConfigError(
            "--execution cuda_graph records CUDA graphs, and there are none on the CPU", "use --device cuda"
        )
    bf16 = device.type == "cuda"
    graph, compiled, eager = (Execution(way, device, bf16) for way in ("cuda_graph", "compile", "eager"))
    if name == "cuda_graph":
        return graph, replace(graph, compiled=False), compiled, eager
    return (compiled, eager) if name == "compile" else (eager,)


def measure_speed(
    setting_name: str,
    methods: list[str],
    lengths: list[int],
    device: torch.device,
    *,
    execution: str = "eager",
    gradient_checkpointing: bool = False,
    limit: float | None = None,
    compile_jobs: int = 1,
    note: Note = lambda text: None,
) -> Iterator[dict[str, Any]]:
    """One row per method and length as they are measured; what does not fit into memory says so.

    What cannot run in `execution`, gives other results there, or takes longer than `limit` seconds to compile and
    measure, runs in the next best one; the row says in which it ran and why. `note` is told what is being tried. So
    many `compile_jobs` build and compile side by side, each in its process; one at a time is measured.
    """
    executions = executions_of(execution, device)
    wanted = [
        Measurement(setting_name, method, length, kind, executions[0], gradient_checkpointing)
        for method in methods
        for length in lengths
        for kind in KINDS
    ]
    with ExitStack() as stack:
        given_up: GivenUp = {}
        benches = [
            # A graph that fails spoils its process, and a compilation can only be given up together with it.
            _Bench(executions, stack.enter_context(Worker()) if len(executions) > 1 else None, limit, note, given_up)
            for _ in range(compile_jobs if executions[0].compiles else 1)
        ]
        rows: dict[tuple[str, int], dict[str, Any]] = {}
        checked: set[str] = set()
        for start in range(0, len(wanted), len(benches)):
            group = list(zip(wanted[start:], benches, strict=False))
            unchecked = {one.method: bench for one, bench in reversed(group) if one.method not in checked}
            _side_by_side(
                lambda item: item[1].run(check_model, setting_name, item[0], executions[-1]), unchecked.items()
            )
            checked |= unchecked.keys()
            for one, numbers in _one_by_one(group, note):
                row = rows.setdefault(
                    (one.method, one.length),
                    {
                        "method": one.method,
                        "length": one.length,
                        "parameters": parameters(setting_name, one.method, one.length),
                    },
                )
                row |= numbers
                if all(f"{kind}_execution" in row or f"{kind}_failed" in row for kind in KINDS):
                    yield row


def _one_by_one(group: list[tuple[Measurement, _Bench]], note: Note) -> Iterator[tuple[Measurement, dict[str, Any]]]:
    """Prepare side by side, then measure one at a time; what does not fit beside the others goes last."""
    later = []
    if len(group) > 1:
        note(f"compiling {len(group)} steps side by side ...")
        prepared = _side_by_side(lambda pair: pair[1].prepare(pair[0]), group)
        later = [pair for pair, done in zip(group, prepared, strict=True) if not done]
        group = [pair for pair, done in zip(group, prepared, strict=True) if done]
    for one, bench in group:
        numbers = bench.best(one)
        if later or len(group) > 1:
            reasons = numbers.get(f"{one.kind}_instead_of", {}).values()
            if OUT_OF_MEMORY in (numbers.get(f"{one.kind}_failed"), *reasons):
                later.append((one, bench))
                continue
        yield one, numbers
    for one, bench in later:
        yield one, bench.best(one)


def _side_by_side(function: Callable[[T], R], arguments: Collection[T]) -> list[R]:
    """All at once, in threads that wait for their workers."""
    with ThreadPoolExecutor(max(len(arguments), 1)) as pool:
        return list(pool.map(function, arguments))


class _Bench:
    """Finds for each measurement the first execution that works."""

    def __init__(
        self,
        executions: tuple[Execution, ...],
        worker: Worker | None,
        limit: float | None,
        note: Note,
        given_up: GivenUp,
    ) -> None:
        self.executions, self.worker, self.limit, self.note = executions, worker, limit, note
        self._given_up = given_up

    def run(self, function: Callable[..., Any], *arguments: Any, limit: float | None = None) -> Any:
        """Call a function here, or in the worker where there is one."""
        return function(*arguments) if self.worker is None else self.worker.run(function, *arguments, limit=limit)

    def prepare(self, wanted: Measurement) -> bool:
        """Build and compile in the worker, which keeps it for the measurement; False where that failed.

        What cannot be compiled is not tried again; whatever else went wrong goes wrong in the measurement, where it is
        told and dealt with.
        """
        assert self.worker is not None
        first = self.executions[0]
        if (wanted.method, wanted.kind, first) in self._given_up:
            return False
        try:
            self.worker.run(prepare, replace(wanted, execution=first), limit=self.limit)
        except Exception as problem:  # noqa: BLE001 - of any kind: see above
            self.worker.restart()
            if isinstance(problem, CannotRun) and problem.reason != OUT_OF_MEMORY:
                self._given_up[wanted.method, wanted.kind, first] = problem.reason
                self._say_why_not(replace(wanted, execution=first), problem.reason)
            return False
        return True

    def best(self, wanted: Measurement) -> dict[str, Any]:
        """The numbers under their kind's name, with the execution they come from and why not a better one."""
        kind, reasons = wanted.kind, dict[str, str]()
        for execution in self.executions:
            known_reason = self._given_up.get((wanted.method, kind, execution))
            outcome = self._try(replace(wanted, execution=execution)) if known_reason is None else known_reason
            if not isinstance(outcome, str):
                found = {"execution": str(execution), **outcome}
                return {f"{kind}_{key}": value for key, value in found.items()} | _why(kind, reasons)
            reasons[str(execution)] = outcome
            # The same at every length, but for memory; and something must be tried.
            if outcome != OUT_OF_MEMORY and execution != self.executions[-1]:
                self._given_up[wanted.method, kind, execution] = outcome
        return {f"{kind}_failed": outcome} | _why(kind, reasons)

    def _try(self, wanted: Measurement) -> dict[str, Any] | str:
        """The numbers, or why there are none."""
        self.note(f"{wanted.method}  T={wanted.length:,}  {wanted.kind}: {wanted.execution} ...")
        try:
            return self.run(measure, wanted, limit=None if wanted.execution == self.executions[-1] else self.limit)
        except CannotRun as obstacle:
            if obstacle.spoilt and self.worker is not None:
                self.worker.restart()
            reason = obstacle.reason
        except (WorkerLost, GateFailed) as problem:
            reason = str(problem)
        self._say_why_not(wanted, reason)
        return reason

    def _say_why_not(self, wanted: Measurement, reason: str) -> None:
        self.note(f"{wanted.method}  T={wanted.length:,}  {wanted.kind}: not as {wanted.execution}: {reason}")


def _why(kind: str, reasons: dict[str, str]) -> dict[str, Any]:
    return {f"{kind}_instead_of": reasons} if reasons else {}


def describe(
    setting_name: str, device: torch.device, *, execution: str = "eager", gradient_checkpointing: bool = False
) -> dict[str, Any]:
    """Everything that decides the numbers, to be printed above the table; what cannot be run at all is an error."""
    executions_of(execution, device)
    if gradient_checkpointing and execution == "cuda_graph":
        raise ConfigError(
            "--gradient-checkpointing: `train` does not run it as a CUDA graph, so that it is not timed as one",
            "use --execution compile",
        )
    precision = "bf16 autocast" if device.type == "cuda" else "float32"
    return {
        "setting": setting_name,
        **asdict(setting_named(setting_name)),
        "device": device.type,
        "execution": execution,
        "gradient_checkpointing": gradient_checkpointing,
        "step": "the training step of `transnormer train`: batches, schedule, clipping and AdamW included",
        "precision": precision + _ABOUT[execution],
    }
