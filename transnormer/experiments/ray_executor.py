"""Jobs on the nodes of a Ray cluster: each a task that runs the job's process beside it and is retried elsewhere.

The nodes share the folders of the runs. What a job has done lies there, so a task that was lost with its node goes on
from the last checkpoint wherever Ray starts it again.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError, TaskCancelledError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from transnormer import __version__
from transnormer.config.schema import TrainSection
from transnormer.environment import source_commit
from transnormer.errors import ConfigError, Preempted, RunInUseError, TransNormerError
from transnormer.experiments.executor import JOBS_AT_ONCE, Executor, check_machine, hardware_of
from transnormer.experiments.job import Job
from transnormer.experiments.ray_cluster import Share, share_out
from transnormer.experiments.worker_pool import WorkerPool, launch_here
from transnormer.files import disk_errors

_RETRIES = 3  # of a job whose node or whose Ray worker is lost
_ANSWER = 180.0  # seconds for a node to start a Python process that imports torch
_PAUSE = 0.5  # seconds between two looks of a task at its process, and at what it is to be told
_SILENCE = 15.0  # seconds after which a task that does not look is lost, or was never started
_GLANCE = 0.0001  # of a GPU, the least that Ray counts: without any it hides them
_WRITER = 180.0  # seconds for a lost node to let go of a run: NFS keeps the lock of a silent client for 90


@contextmanager
def joined(address: str) -> Iterator[Executor]:
    """Be a driver of the cluster while the block lasts."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (RuntimeError, ConnectionError, ValueError, TimeoutError, RayError) as error:
        raise ConfigError(
            f"cannot join the Ray cluster at {address}: {str(error).strip().splitlines()[0]}",
            hint=f"this machine must be a node of it (`ray start --address={address}`), "
            "with the versions of Python and ray that the others have",
        ) from error
    finally:
        signal.signal(signal.SIGTERM, handler)  # Ray's own would end this process without a word of what is left
    try:
        yield RayExecutor(address)
    finally:
        ray.shutdown()


@dataclass(frozen=True)
class _Node:
    """A living node: its number, its name for people, its resources."""

    identity: str
    name: str
    resources: dict[str, float]


class RayExecutor(Executor):
    """Tasks of the cluster at `address`, which this process has joined."""

    def __init__(self, address: str) -> None:
        self._address = address

    def device_of(self, jobs: Sequence[Job]) -> str:
        wanted, has_gpus = jobs[0].config.train.device, any(_able(node, "cuda") for node in _nodes())
        if wanted == "cuda" and not has_gpus:
            raise ConfigError(
                f"train.device is cuda, but the Ray cluster at {self._address} has no GPU", hint="use train.device=auto"
            )
        return "cuda" if wanted != "cpu" and has_gpus else "cpu"

    def places(self, device: str, workers: int | None) -> int:
        return self._share(device, workers).places

    def hardware(self, device: str) -> dict[str, Any]:
        """Of one node: a budget is planned as if all were the same."""
        gpus = _GLANCE if device == "cuda" else 0.0
        return self._ask(self._able_nodes(device)[0], hardware_of, device, gpus=gpus)

    def check(self, train: TrainSection, device: str) -> None:
        self._ask(self._able_nodes(device)[0], check_machine, train, device)

    @contextmanager
    def pool(
        self, device: str, workers: int | None, size: int, runs: Path, say: Callable[[str], None]
    ) -> Iterator[WorkerPool]:
        nodes, share = self._able_nodes(device), self._share(device, workers)
        self._check_nodes(nodes, runs)
        say(f"Ray cluster at {self._address}: {share.places} places on {', '.join(node.name for node in nodes)}")
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        told = ray.remote(_Told).options(num_cpus=0, scheduling_strategy=here).remote()  # lost only with this process
        task = _run.options(
            num_cpus=share.cpus, num_gpus=share.gpus, max_retries=_RETRIES, scheduling_strategy="SPREAD"
        )
        ours = {name: value for name, value in os.environ.items() if name.startswith("TRANSNORMER_")}

        def launch(job: Job, environment: Mapping[str, str]) -> _Task:
            return _Task(job, task.remote(job, Path.cwd(), dict(environment), told), told)

        yield WorkerPool(size, {**ours, "OMP_NUM_THREADS": str(share.threads)}, launch)

    def _share(self, device: str, workers: int | None) -> Share:
        return share_out([node.resources for node in self._able_nodes(device)], device, workers or JOBS_AT_ONCE[device])

    def _able_nodes(self, device: str) -> list[_Node]:
        if able := [node for node in _nodes() if _able(node, device)]:
            return able
        raise ConfigError(
            f"the Ray cluster at {self._address} has no {'GPU' if device == 'cuda' else 'CPU core'} to run jobs on",
            hint=f"add a node: `ray start --address={self._address}`",
        )

    def _ask(self, node: _Node, function: Callable[..., Any], *arguments: Any, gpus: float = 0.0) -> Any:
        """What a function returns, or raises for people, on a node."""
        return self._answer(node, _sent_to(node, function, *arguments, gpus=gpus))

    def _answer(self, node: _Node, sent: ray.ObjectRef) -> Any:
        try:
            return ray.get(sent, timeout=_ANSWER)
        except GetTimeoutError:
            raise ConfigError(
                f"node {node.name} of the Ray cluster did not answer (waited {_ANSWER:g} s)",
                hint="see `ray status`, or run without it: `ray stop` there",
            ) from None
        except RayTaskError as error:
            if isinstance(error.cause, TransNormerError):
                raise error.cause from None
            raise ConfigError(
                f"node {node.name} of the Ray cluster cannot run transnormer: {error.cause}",
                hint="install the same version of it on every node",
            ) from error
        except RayError as error:
            raise ConfigError(
                f"node {node.name} of the Ray cluster was lost: {error}", hint="see `ray status`; then the same again"
            ) from error

    def _check_nodes(self, nodes: Sequence[_Node], runs: Path) -> None:
        """All run the same program, and see the folders that this process sees."""
        token, text = runs.absolute() / f".ray-{uuid.uuid4().hex}", uuid.uuid4().hex
        with disk_errors(token):
            token.write_text(text)
        try:
            for node, sent in [(node, _sent_to(node, _what_it_sees, token, Path.cwd())) for node in nodes]:
                program, seen, is_folder = self._answer(node, sent)
                if program != _program():
                    raise ConfigError(
                        f"node {node.name} has transnormer {program}, this machine {_program()}",
                        hint="install the same version on every node",
                    )
                for folder, is_there in ((runs.absolute(), seen == text), (Path.cwd(), is_folder)):
                    if not is_there:
                        raise ConfigError(
                            f"node {node.name} does not see {folder} of this machine",
                            hint="the nodes must share --runs and the folder that the command is given in, "
                            "under the same names",
                        )
        finally:
            with disk_errors(token):
                token.unlink()


class _Task:
    """The process of a job as seen from here; worker_pool.Process says what each method is for."""

    def __init__(self, job: Job, result: ray.ObjectRef, told: Any) -> None:
        self._job, self._result, self._told = job, result, told
        self._is_to_stop = False
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and ray.wait([self._result], timeout=0)[0]:
            self.returncode = self._code()
        if self.returncode is None and self._is_to_stop and not ray.get(self._told.is_heard.remote(self._job.identity)):
            ray.cancel(self._result)  # it waits for a place, and Ray would start it
        return self.returncode

    def send_signal(self, sig: int) -> None:
        """All that is sent is SIGTERM."""
        self._is_to_stop = True
        ray.get(self._told.tell.remote(self._job.identity))

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self._job.command(), timeout or 0.0)
            ray.wait([self._result], timeout=_PAUSE)
        return code

    def kill(self) -> None:
        ray.cancel(self._result, force=True)

    def _code(self) -> int:
        """What the process returned; what became of one whose end nobody saw is written to its log."""
        try:
            return ray.get(self._result)
        except TaskCancelledError:
            return -signal.SIGTERM
        except RayTaskError as error:
            _log(self._job, f"the task that ran it failed: {error}")
            return 1
        except RayError as error:
            _log(self._job, f"lost by Ray, {_RETRIES} retries included: {error}")
            return -signal.SIGKILL


class _Told:
    """Which jobs are to stop. Tasks ask: a file would reach a node only when its file system looks again."""

    def __init__(self) -> None:
        self._signals: Counter[str] = Counter()
        self._heard: dict[str, float] = {}

    def tell(self, job: str) -> None:
        """Once more."""
        self._signals[job] += 1

    def signals(self, job: str) -> int:
        """How many a task is to have sent to its process."""
        self._heard[job] = time.monotonic()
        return self._signals[job]

    def is_heard(self, job: str) -> bool:
        """Whether a task of the job asks."""
        return job in self._heard and time.monotonic() - self._heard[job] < _SILENCE


@ray.remote
def _run(job: Job, folder: Path, environment: dict[str, str], told: Any) -> int:
    """On a node: the process of a job from its start, or its last checkpoint, to its end."""
    os.chdir(folder)  # what the command names may be relative to it
    _log(job, f"on {socket.gethostname()}, Ray node {ray.get_runtime_context().get_node_id()}")
    deadline = time.monotonic() + _WRITER
    while (is_written := job.is_being_written()) and time.monotonic() < deadline:
        if _signals(told, job):
            break
        time.sleep(_PAUSE)
    if _signals(told, job):
        return Preempted.exit_code  # nothing was begun
    if is_written:
        _log(job, f"error: {job.folder} is still being written by another process (waited {_WRITER:g} s)")
        return RunInUseError.exit_code
    process, sent = launch_here(job, environment), 0
    try:
        while process.poll() is None:
            time.sleep(_PAUSE)
            wanted = _signals(told, job)
            for _ in range(wanted - sent):
                process.send_signal(signal.SIGTERM)
            sent = wanted
    finally:
        if process.poll() is None:  # whoever asked for the job is gone
            process.terminate()
            process.wait()
    return process.returncode


def _signals(told: Any, job: Job) -> int:
    return ray.get(told.signals.remote(job.identity))


@ray.remote
def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def _sent_to(node: _Node, function: Callable[..., Any], *arguments: Any, gpus: float = 0.0) -> ray.ObjectRef:
    """A call on a node, however busy it is."""
    there = NodeAffinitySchedulingStrategy(node.identity, soft=False)
    call = _call.options(num_cpus=0, num_gpus=gpus, max_retries=0, scheduling_strategy=there)
    return call.remote(function, *arguments)


def _what_it_sees(token: Path, folder: Path) -> tuple[str, str | None, bool]:
    """On a node: which program it has, the text in a file, and whether a folder is there."""
    return _program(), token.read_text() if token.is_file() else None, folder.is_dir()


def _program() -> str:
    return f"{__version__} ({source_commit() or 'of no known commit'})"


def _nodes() -> list[_Node]:
    return [_Node(node["NodeID"], node["NodeName"], node["Resources"]) for node in ray.nodes() if node["Alive"]]


def _able(node: _Node, device: str) -> bool:
    """Whether a node can run jobs; a head may be told to run none."""
    return node.resources.get("GPU" if device == "cuda" else "CPU", 0.0) >= 1


def _log(job: Job, words: str) -> None:
    with job.log_file.open("a", encoding="utf-8") as log:
        log.write(f"{words}\n")
