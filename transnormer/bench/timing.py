"""How long a function takes and how much memory it needs at its peak, on a CPU or a GPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from transnormer.allocator import keep_freed_memory
from transnormer.cuda_graph import capture
from transnormer.errors import ConfigError

_REPLAYS = 15  # of a CUDA graph, of which the median counts


def require_device(name: str) -> torch.device:
    """The device of that name, or an error where the machine has none; CPU memory is kept as in training."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda, but torch sees no CUDA device", "use --device cpu")
    if name == "cpu":
        keep_freed_memory()
    return torch.device(name)


def median_seconds(
    function: Callable[[], object], device: torch.device, *, warmup: int = 2, repeats: int = 5, at_least: float = 0.3
) -> float:
    """Median over `repeats` calls or as many as fill `at_least` seconds, whichever are more, after a warm-up."""
    for _ in range(warmup):
        function()
    _wait(device)
    times: list[float] = []
    while len(times) < repeats or sum(times) < at_least:
        start = time.perf_counter()
        function()
        _wait(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def graph_microseconds(function: Callable[[], object], *, calls: int) -> float:
    """Median time of one of the `calls` that `function` makes on the GPU, from replays of a CUDA graph."""
    replay = capture(function, warmup=2)
    replay()
    times = []
    for _ in range(_REPLAYS):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        replay()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) * 1e3 / calls)
    return statistics.median(times)


def peak_bytes(function: Callable[[], object], device: torch.device) -> int | None:
    """Peak of allocated memory during one call, what was allocated before included; None on the CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    function()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
