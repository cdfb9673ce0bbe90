"""The paper's speed table: training and inference steps per second of every method over the length, in one run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from typing import Any

import torch

from transnormer.bench.modes import CannotRun, Way, ways_of
from transnormer.bench.modes import describe as describe_error
from transnormer.bench.ops import GateFailed
from transnormer.bench.speed_cell import (
    KINDS,
    OUT_OF_MEMORY,
    Cell,
    check_model,
    compile_cell,
    measure_cell,
    parameters,
)
from transnormer.bench.speed_shell import known_methods, setting_named
from transnormer.bench.worker import Worker, WorkerLost
from transnormer.errors import ConfigError, did_you_mean

Note = Callable[[str], None]
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
    runs in the next best one; the row says in which it ran and why. `note` is told what is being tried. With several
    `compile_jobs`, as many processes compile all cells first; measured is one cell at a time.
    """
    ways = ways_of(mode, device)
    known = known_methods(setting_name)
    for method in methods:
        if method not in known:
            raise ConfigError(f"method '{method}' cannot run in setting '{setting_name}'", did_you_mean(method, known))
    if compile_jobs > 1 and ways[0].compiled:
        cells = [
            Cell(setting_name, device, method, length, kind, ways[0])
            for method in methods
            for length in lengths
            for kind in KINDS
        ]
        compile_ahead(cells, compile_jobs, limit, note)
    with ExitStack() as stack:
        # A graph that fails spoils its process, and a compilation can only be given up together with it.
        worker = stack.enter_context(Worker()) if len(ways) > 1 else None
        bench = _Bench(ways, worker, limit, note)
        for method in methods:
            bench.run(check_model, setting_name, method, device)
            for length in lengths:
                row = {"method": method, "length": length, "parameters": parameters(setting_name, method, length)}
                for kind in KINDS:
                    row |= bench.best(Cell(setting_name, device, method, length, kind))
                yield row


def compile_ahead(cells: Sequence[Cell], jobs: int, limit: float | None, note: Note) -> None:
    """Compile cells in several processes at once; the measurement finds what they leave on disk.

    Whatever goes wrong here goes wrong there again, where it is told and dealt with.
    """
    waiting = deque(cells)

    def compile_some() -> None:
        with Worker() as worker:
            while waiting:
                with suppress(IndexError):  # another thread took the last one
                    cell = waiting.popleft()
                    what = f"{cell.method}  T={cell.length:,}  {cell.kind}"
                    try:
                        worker.run(compile_cell, cell, limit=limit)
                        note(f"{what}: compiled ahead, {len(waiting)} left")
                    except Exception as problem:  # noqa: BLE001 - of any kind: see above
                        note(f"{what}: not compiled ahead ({describe_error(problem)})")
                        worker.restart()

    with ThreadPoolExecutor(jobs) as pool:
        for job in [pool.submit(compile_some) for _ in range(min(jobs, len(cells)))]:
            job.result()


class _Bench:
    """Finds for each cell the first way that works."""

    def __init__(self, ways: tuple[Way, ...], worker: Worker | None, limit: float | None, note: Note) -> None:
        self.ways, self.worker, self.limit, self.note = ways, worker, limit, note
        self._given_up: dict[tuple[str, str, Way], str] = {}

    def run(self, function: Callable[..., Any], *arguments: Any, limit: float | None = None) -> Any:
        """Call a function here, or in the worker where there is one."""
        return function(*arguments) if self.worker is None else self.worker.run(function, *arguments, limit=limit)

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
        self.note(f"{cell.method}  T={cell.length:,}  {cell.kind}: not as {cell.way}: {reason}")
        return reason


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
