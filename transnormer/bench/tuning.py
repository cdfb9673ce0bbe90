"""Compilers that time kernels to choose between them, kept from doing so all at once."""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import Any

from transnormer.data.cache import cache_root
from transnormer.files import disk_errors, lock


def lock_file() -> Path:
    """One for all processes of this user, in a folder that nobody else writes to."""
    path = cache_root() / "tuning.lock"
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    return path


def tune_one_at_a_time() -> None:
    """Inductor's choice between versions of a kernel waits in this process until no other one makes such a choice.

    Processes that compile side by side on one GPU would disturb each other's timings, and keep what they chose by them.
    """
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    choose = CachingAutotuner.benchmark_all_configs
    if hasattr(choose, "__wrapped__"):
        return

    @wraps(choose)
    def alone(self: CachingAutotuner, *args: Any, **kwargs: Any) -> Any:
        with lock(lock_file(), wait=True):
            return choose(self, *args, **kwargs)

    CachingAutotuner.benchmark_all_configs = alone  # type: ignore[method-assign]
