"""Where jobs run: on this machine, or on others (ray_executor.py); a runner asks both the same."""

from __future__ import annotations

import json
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

from transnormer.config.schema import TrainSection
from transnormer.environment import hardware
from transnormer.experiments.job import Job
from transnormer.experiments.mps import shared_gpu
from transnormer.experiments.worker_pool import WorkerPool
from transnormer.step.execution import choose_execution
from transnormer.train.ranks import Ranks, runs_on_cuda
from transnormer.train.recorder import require_tensorboard

# One compiles or evaluates while the other trains. More gain little: the kernels of one job alone keep an H200 busy
# for nine tenths of its step (T2, ListOps), and several jobs take the cache from each other.
JOBS_AT_ONCE = {"cpu": 1, "cuda": 2}


class Executor(ABC):
    """Takes jobs and says how they ended, through a pool of workers; records are written by whoever asked."""

    @abstractmethod
    def device_of(self, jobs: Sequence[Job]) -> str:
        """What the jobs will run on, cpu or cuda; they all have the same settings."""

    @abstractmethod
    def places(self, device: str, workers: int | None) -> int:
        """How many jobs can run at once, where a person asked for `workers` or did not say."""

    @abstractmethod
    def hardware(self, device: str) -> dict[str, Any]:
        """Names of the processor and the GPUs, as records have them."""

    @abstractmethod
    def check(self, train: TrainSection, device: str) -> None:
        """Raise what a run would about where it is to run."""

    @abstractmethod
    def pool(
        self, device: str, workers: int | None, size: int, runs: Path, say: Callable[[str], None]
    ) -> AbstractContextManager[WorkerPool]:
        """What starts, watches and stops the jobs whose folders lie in `runs`, `size` at once of the places there."""


class LocalExecutor(Executor):
    """Processes of this machine, which share its GPU."""

    def device_of(self, jobs: Sequence[Job]) -> str:
        return "cuda" if runs_on_cuda(jobs[0].config.train) else "cpu"

    def places(self, device: str, workers: int | None) -> int:
        return workers or JOBS_AT_ONCE[device]

    def hardware(self, device: str) -> dict[str, Any]:
        return hardware_of(device)

    def check(self, train: TrainSection, device: str) -> None:
        check_machine(train, device)

    @contextmanager
    def pool(
        self, device: str, workers: int | None, size: int, runs: Path, say: Callable[[str], None]
    ) -> Iterator[WorkerPool]:
        """On a GPU, several processes need a service to run at the same time."""
        alone = device != "cuda" or size == 1
        shared: AbstractContextManager[dict[str, str]] = nullcontext({}) if alone else shared_gpu(runs / ".mps", say)
        with shared as environment:
            yield WorkerPool(size, environment)


def check_machine(train: TrainSection, device: str) -> None:
    """Raise what a run would about this machine; on a GPU, asking would keep a place on it for good."""
    if train.tensorboard:
        require_tensorboard()
    if device == "cpu":
        choose_execution(train, (ranks := Ranks(train)).device, ranks.world_size)


@cache
def hardware_of(device: str) -> dict[str, Any]:
    """Names of the processor and the GPUs; asking torch for the latter would keep a place on the GPU for good."""
    if device == "cpu":
        return hardware()
    ask = "import json; from transnormer.environment import hardware; print(json.dumps(hardware()))"
    return json.loads(subprocess.run([sys.executable, "-c", ask], check=True, capture_output=True, text=True).stdout)
