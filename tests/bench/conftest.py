"""Benchmarks in the tests: whether they measure what they say, not how long that takes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing import forkserver

import pytest
import torch

from transnormer.bench import decode, loss, ops, speed_measurement, timing


@pytest.fixture(autouse=True)
def timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeating what is timed makes a number steadier, which no test looks at."""
    whole = timing.median_seconds

    def once(function: Callable[[], object], device: torch.device, **_: object) -> float:
        return whole(function, device, warmup=1, repeats=1, at_least=0)

    for module in (decode, loss, ops, speed_measurement):
        monkeypatch.setattr(module, "median_seconds", once)


@pytest.fixture(scope="session")
def _fork_server_without_compiler() -> multiprocessing.context.BaseContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["transnormer.bench.speed"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_COMPILE_DISABLE", "1")
        forkserver.ensure_running()
    return context


@pytest.fixture
def forked_workers(
    _fork_server_without_compiler: multiprocessing.context.BaseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers are processes of their own, but import torch once for all; there the compiler is switched off."""
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: _fork_server_without_compiler)
