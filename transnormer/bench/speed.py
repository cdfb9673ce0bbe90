"""The paper's speed table: training and inference steps per second of every method over the length, in one run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any, TypeVar

import torch

from transnormer.bench.modes import CannotRun, Way, ways_of
from transnormer.bench.ops import GateFailed
from transnormer.bench.speed_cell import (
    KINDS,
    OUT_OF_MEMORY,
    Cell,
    check_model,
    measure_cell,
    parameters,
    prepare_cell,
)
from transnormer.bench.speed_shell import known_methods, setting_named
from transnormer.bench.worker import Worker, WorkerLost
from transnormer.errors import ConfigError, did_you_mean

T = TypeVar("T")
R = TypeVar("R")
Note = Callable[[str], None]
# By method, kind and way: why it is not tried at further lengths.
GivenUp = dict[tuple[str, str, Way], str]
_ABOUT_MODE = {"eager": "", "compile": ", torch.compile", "graph": ", torch.compile, a step is one CUDA graph"}


def measure_speed(
    setting_name: str,
    methods: list[str],
    lengths: list[int],
    device: torch.device,
    *,
    mode: str = "eager",
    limit: float | None = None,
    compile_jobs: int = 1,
    note: Note = lambda text: None,
) -> Iterator[dict[str, Any]]:
    """One row per method and length as they are measured; a cell that does not fit into memory says so.

    What cannot run in `mode`, gives other results there, or takes longer than `limit` seconds to compile and measure,
    runs in the next best one; the row says in which it ran and why. `note` is told what is being tried. So many
    `compile_jobs` build and compile cells side by side, each in its process; measured is one cell at a time.
    """
    ways = ways_of(mode, device)
    known = known_methods(setting_name)
    for method in methods:
        if method not in known:
            raise ConfigError(f"method '{method}' cannot run in setting '{setting_name}'", did_you_mean(method, known))
    cells = [
        Cell(setting_name, device, method, length, kind) for method in methods for length in lengths for kind in KINDS
    ]
    with ExitStack() as stack:
        given_up: GivenUp = {}
        benches = [
            # A graph that fails spoils its process, and a compilation can only be given up together with it.
            _Bench(ways, stack.enter_context(Worker()) if len(ways) > 1 else None, limit, note, given_up)
            for _ in range(compile_jobs if ways[0].compiled else 1)
        ]
        rows: dict[tuple[str, int], dict[str, Any]] = {}
        checked: set[str] = set()
        for start in range(0, len(cells), len(benches)):
            turns = list(zip(cells[start:], benches, strict=False))
            unchecked = {cell.method: bench for cell, bench in reversed(turns) if cell.method not in checked}
            _side_by_side(lambda item: item[1].run(check_model, setting_name, item[0], device), unchecked.items())
            checked |= unchecked.keys()
            for cell, numbers in _one_by_one(turns, note):
                row = rows.setdefault(
                    (cell.method, cell.length),
                    {
                        "method": cell.method,
                        "length": cell.length,
                        "parameters": parameters(setting_name, cell.method, cell.length),
                    },
                )
                row |= numbers
                if all(f"{kind}_mode" in row or f"{kind}_failed" in row for kind in KINDS):
                    yield row


def _one_by_one(turns: list[tuple[Cell, _Bench]], note: Note) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Prepare cells side by side, then measure them one at a time; what does not fit beside the others goes last."""
    later = []
    if len(turns) > 1:
        note(f"compiling {len(turns)} cells side by side ...")
        prepared = _side_by_side(lambda turn: turn[1].prepare(turn[0]), turns)
        later = [turn for turn, done in zip(turns, prepared, strict=True) if not done]
        turns = [turn for turn, done in zip(turns, prepared, strict=True) if done]
    for cell, bench in turns:
        numbers = bench.best(cell)
        if later or len(turns) > 1:
            reasons = numbers.get(f"{cell.kind}_instead_of", {}).values()
            if OUT_OF_MEMORY in (numbers.get(f"{cell.kind}_failed"), *reasons):
                later.append((cell, bench))
                continue
        yield cell, numbers
    for cell, bench in later:
        yield cell, bench.best(cell)


def _side_by_side(function: Callable[[T], R], arguments: Collection[T]) -> list[R]:
    """All at once, in threads that wait for their workers."""
    with ThreadPoolExecutor(max(len(arguments), 1)) as pool:
        return list(pool.map(function, arguments))


class _Bench:
    """Finds for each cell the first way that works."""

    def __init__(
        self, ways: tuple[Way, ...], worker: Worker | None, limit: float | None, note: Note, given_up: GivenUp
    ) -> None:
        self.ways, self.worker, self.limit, self.note = ways, worker, limit, note
        self._given_up = given_up

    def run(self, function: Callable[..., Any], *arguments: Any, limit: float | None = None) -> Any:
        """Call a function here, or in the worker where there is one."""
        return function(*arguments) if self.worker is None else self.worker.run(function, *arguments, limit=limit)

    def prepare(self, cell: Cell) -> bool:
        """Build and compile a cell in the worker, which keeps it for the measurement; False where that failed.

        What cannot be compiled is not tried again; whatever else went wrong goes wrong in the measurement, where it is
        told and dealt with.
        """
        assert self.worker is not None
        first = self.ways[0]
        if (cell.method, cell.kind, first) in self._given_up:
            return False
        try:
            self.worker.run(prepare_cell, replace(cell, way=first), limit=self.limit)
        except Exception as problem:  # noqa: BLE001 - of any kind: see above
            self.worker.restart()
            if isinstance(problem, CannotRun) and problem.reason != OUT_OF_MEMORY:
                self._given_up[cell.method, cell.kind, first] = problem.reason
                self._say_why_not(replace(cell, way=first), problem.reason)
            return False
        return True

    def best(self, cell: Cell) -> dict[str, Any]:
        """The numbers of a cell under its kind's name, with the mode they come from and why not a better one."""
        reasons: dict[str, str] = {}
        for way in self.ways:
            known_reason = self._given_up.get((cell.method, cell.kind, way))
            outcome = self._try(replace(cell, way=way)) if known_reason is None else known_reason
            if not isinstance(outcome, str):
                found = {"mode": way.mode, "compiled": way.compiled, **outcome}
                return {f"{cell.kind}_{key}": value for key, value in found.items()} | _why(cell, reasons)
            reasons[str(way)] = outcome
            # The same at every length, but for memory; and something must be tried.
            if outcome != OUT_OF_MEMORY and way != self.ways[-1]:
                self._given_up[cell.method, cell.kind, way] = outcome
        return {f"{cell.kind}_failed": outcome} | _why(cell, reasons)

    def _try(self, cell: Cell) -> dict[str, Any] | str:
        """The numbers, or why there are none."""
        self.note(f"{cell.method}  T={cell.length:,}  {cell.kind}: {cell.way} ...")
        try:
            return self.run(measure_cell, cell, limit=None if cell.way == self.ways[-1] else self.limit)
        except CannotRun as obstacle:
            if obstacle.spoilt and self.worker is not None:
                self.worker.restart()
            reason = obstacle.reason
        except (WorkerLost, GateFailed) as problem:
            reason = str(problem)
        self._say_why_not(cell, reason)
        return reason

    def _say_why_not(self, cell: Cell, reason: str) -> None:
        self.note(f"{cell.method}  T={cell.length:,}  {cell.kind}: not as {cell.way}: {reason}")


def _why(cell: Cell, reasons: dict[str, str]) -> dict[str, Any]:
    return {f"{cell.kind}_instead_of": reasons} if reasons else {}


def describe(setting_name: str, device: torch.device, *, mode: str = "eager") -> dict[str, Any]:
    """Everything that decides the numbers, to be printed above the table; what cannot be run at all is an error."""
    ways_of(mode, device)
    precision = "bf16 autocast, fused AdamW" if device.type == "cuda" else "float32"
    return {
        "setting": setting_name,
        **asdict(setting_named(setting_name)),
        "device": device.type,
        "mode": mode,
        "precision": precision + _ABOUT_MODE[mode],
    }
