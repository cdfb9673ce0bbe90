"""How many threads PyTorch computes with on a CPU: too many on a busy machine cost more than they bring.

Threads wait for each other at the end of every op, so that one which another program holds up holds up all. Sums are
made in another order with another number of threads: a resumed run takes the number that it began with.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

_SET_BY_USER = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # torchrun sets the first
_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container: microseconds of all CPUs together, and of how many
# Seconds to look at what others compute. The load average is of the last minute, and of what this process, or the
# installation before it, did then.
_LOOK = 0.3


@dataclass(frozen=True)
class Threads:
    """How many, and who chose."""

    number: int
    chosen_by: str

    def __str__(self) -> str:
        return f"{self.number} thread{'s' * (self.number != 1)} ({self.chosen_by})"


def use_threads(wanted: int | None, recorded: int | None = None) -> Threads:
    """Let PyTorch compute with as many threads as chosen: by train.threads, by the user's environment, by the run that
    goes on, or by what the machine has to spare."""
    chosen = choose_threads(wanted, recorded, torch.get_num_threads())
    if chosen.number != torch.get_num_threads():
        torch.set_num_threads(chosen.number)
    return chosen


def choose_threads(wanted: int | None, recorded: int | None, default: int) -> Threads:
    """As `use_threads`, of which PyTorch by itself would take `default`."""
    if wanted is not None:
        return Threads(wanted, "train.threads")
    if named := next((name for name in _SET_BY_USER if os.environ.get(name)), None):
        return Threads(default, named)
    if recorded is not None:
        return Threads(recorded, "as the run began")
    cores, allowed = os.cpu_count() or 1, quota(_QUOTA.read_text()) if _QUOTA.is_file() else math.inf
    busy = cores * psutil.cpu_percent(interval=_LOOK) / 100
    idle = max(1, round(min(cores - busy, allowed)))
    if idle >= default:
        return Threads(default, "one a core")
    if cores - busy < allowed:
        return Threads(idle, f"of {cores} cores {busy:.1f} are busy")
    return Threads(idle, f"of {cores} cores {allowed:g} may be used")


def quota(cpu_max: str) -> float:
    """The CPUs that a container may use at once, from its cpu.max: '200000 100000' are two, 'max 100000' all."""
    microseconds, period = cpu_max.split()
    return math.inf if microseconds == "max" else int(microseconds) / int(period)
