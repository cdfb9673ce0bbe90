"""Processes that compile side by side choose kernels one after the other."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from transnormer.bench import tuning


def _choose(folder: str) -> tuple[float, float, str]:
    """Two choices of a kernel in a process of its own; when the second began and ended, and what came of it."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    def slow(self: object, answer: str) -> str:
        times.extend([time.monotonic(), time.sleep(0.2), time.monotonic()])
        return answer

    times: list = []
    CachingAutotuner.benchmark_all_configs = slow
    tuning.lock_file = lambda: Path(folder) / "lock"
    for _ in range(2):  # as one worker prepares several measurements: the lock is taken once, not within itself
        tuning.tune_one_at_a_time()
    tuner = object.__new__(CachingAutotuner)
    answer = tuner.benchmark_all_configs("the best")
    return times[0], times[2], answer


def test_choices_do_not_overlap(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    pytest.importorskip("torch._inductor.runtime.triton_heuristics")  # once, before the processes are forked
    with ProcessPoolExecutor(3, mp_context=get_context("fork")) as pool:
        choices = sorted(pool.map(_choose, [str(tmp_path)] * 3))
    assert [answer for *_, answer in choices] == ["the best"] * 3
    for (_, end, _), (begin, _, _) in itertools.pairwise(choices):
        assert end <= begin
