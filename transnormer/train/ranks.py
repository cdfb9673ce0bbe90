"""The processes of a run, through accelerate: which device and precision, and how ranks add up and agree."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, InitProcessGroupKwargs, broadcast_object_list
from torch import Tensor, nn

from transnormer.allocator import keep_freed_memory
from transnormer.config.schema import TrainSection
from transnormer.errors import ConfigError, RankMissing, TransNormerError, command
from transnormer.mixers.components.context import Context
from transnormer.step.training import Alone
from transnormer.train.heartbeat import Heartbeat
from transnormer.train.threads import Threads, use_threads

T = TypeVar("T")

_CONNECTING = timedelta(seconds=10)  # for a connection to a store that the process has one to

_SUPPORTED = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)


def runs_on_cuda(train: TrainSection) -> bool:
    """Whether `train.device` means a GPU on this machine; otherwise it is the CPU."""
    has_cuda = torch.cuda.is_available()
    if train.device == "cuda" and not has_cuda:
        raise ConfigError("train.device is cuda, but torch sees no CUDA device", hint="use train.device=auto")
    return has_cuda and train.device != "cpu"


class Ranks(Alone):
    """This process among those of the run; with one process every method is the identity."""

    def __init__(self, train: TrainSection, recorded_threads: int | None = None) -> None:
        self._timeout = timedelta(seconds=train.rank_timeout)
        on_cuda = runs_on_cuda(train)
        precision = {"auto": "bf16" if on_cuda else "no", "bf16": "bf16", "float32": "no"}[train.precision]
        self.threads: Threads | None = None  # of the CPU, where that is what computes
        if not on_cuda:
            keep_freed_memory()
            self.threads = use_threads(train.threads, recorded_threads)
        # accelerate keeps device and precision for the life of the process; each run decides them anew.
        AcceleratorState._reset_state(reset_partial_state=True)
        try:
            waiting = InitProcessGroupKwargs(timeout=self._timeout)
            self.accelerator = Accelerator(cpu=not on_cuda, mixed_precision=precision, kwargs_handlers=[waiting])
        except ValueError as error:
            raise ConfigError(f"train.precision={train.precision}: {error}", hint="train.precision=float32") from error
        except torch.distributed.DistError as error:
            raise RankMissing(
                f"not all processes of the run came together within train.rank_timeout={train.rank_timeout} s: "
                + str(error).splitlines()[0],
                hint="start as many as WORLD_SIZE says, with the same MASTER_ADDR and MASTER_PORT, as torchrun does",
            ) from error
        if self.accelerator.distributed_type not in _SUPPORTED:
            raise ConfigError(
                f"{self.accelerator.distributed_type.value} is not supported",
                hint="launch with one process, or with DDP: `accelerate launch --multi_gpu`",
            )
        self.device: torch.device = self.accelerator.device
        self.rank: int = self.accelerator.process_index
        self.world_size: int = self.accelerator.num_processes
        self._heartbeat: Heartbeat | None = None
        if self.world_size > 1:
            atexit.unregister(_leave)
            atexit.register(_leave)
            self._heartbeat = _start_heartbeat(self.rank, self.world_size, self._timeout)
            # Nobody leaves, for whatever error, before all have a connection to the first rank: its store ends with it.
            self.any(False)
        if train.parallel == "fsdp":
            _require_shards(train, self.world_size)
        # Where processes share sequences, each group of them has one share of a batch.
        sharing = train.context_parallel
        self.context = _context(sharing, self.rank, self.world_size, self._timeout)
        self.share, self.num_shares = self.rank // sharing, self.world_size // sharing

    @property
    def is_main(self) -> bool:
        """Whether this is the one process that writes files and prints."""
        return self.rank == 0

    @property
    def uses_bf16(self) -> bool:
        """Whether matrix products are made in bf16."""
        return self.accelerator.mixed_precision == "bf16"

    def share_of(self, total: int) -> range:
        """This rank's slice of `total` items; all slices together are all items in order."""
        return range(self.share * total // self.num_shares, (self.share + 1) * total // self.num_shares)

    @contextmanager
    def naming_the_missing(self) -> Iterator[None]:
        """What PyTorch says of a collective that not all have joined becomes an error that says who has not."""
        try:
            yield
        except RuntimeError as error:
            if self._heartbeat is None or not _is_of_group(error):
                raise
            missing, seconds = self._heartbeat.missing(), self._timeout.total_seconds()
            raise RankMissing(
                f"{missing} did not join rank {self.rank}: frozen, ended, or busy for more than "
                f"train.rank_timeout={seconds:g} s",
                hint=f"see what that process printed, then `{command('resume', 'RUN')}` goes on from the last "
                "checkpoint; where a save takes that long, raise train.rank_timeout",
            ) from error

    def sum_in_place(self, values: Tensor) -> None:
        """Replace values by their elementwise sum over ranks."""
        if self._heartbeat is not None:
            with self._joining():
                torch.distributed.all_reduce(values)

    @contextmanager
    def _joining(self) -> Iterator[None]:
        """Around a collective: count it, and name who does not come to it."""
        assert self._heartbeat is not None
        self._heartbeat.joined += 1
        with self.naming_the_missing():
            yield

    def sum_floats(self, values: list[float]) -> list[float]:
        """The elementwise sum over ranks, in double precision."""
        if self.world_size == 1:
            return values
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        self.sum_in_place(sums)
        return sums.tolist()

    def share_buffers(self, model: nn.Module) -> None:
        """Give all ranks the buffers of the first, such as a BatchNorm's statistics, which every rank adds to."""
        if self._heartbeat is not None:
            for buffer in model.buffers():
                with self._joining():
                    torch.distributed.broadcast(buffer, 0)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on some rank."""
        return self.sum_floats([float(flag)])[0] > 0

    def on_main(self, work: Callable[[], T], meanwhile: Callable[[], None] | None = None) -> T:
        """Do something on the main process; every rank gets its value, or raises its error.

        `meanwhile` is what the others do for it, before they wait.
        """
        if self.world_size == 1:
            return work()
        outcome: list[Any] = [None, None]
        if self.is_main:
            try:
                outcome[0] = work()
            except TransNormerError as error:
                outcome[1] = error
        elif meanwhile is not None:
            meanwhile()
        with self._joining():
            broadcast_object_list(outcome)
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]


def _require_shards(train: TrainSection, world_size: int) -> None:
    """Refuse what weights in shards cannot be combined with."""
    if world_size == 1:
        raise ConfigError(
            "train.parallel=fsdp shares the weights between processes, and there is one",
            hint="start several, `torchrun --nproc_per_node 2 -m transnormer ...`, or use train.parallel=ddp",
        )
    if train.context_parallel > 1:
        raise ConfigError(
            f"train.parallel=fsdp has not been tested with train.context_parallel={train.context_parallel}",
            hint="use train.parallel=ddp, or train.context_parallel=1",
        )


def _context(size: int, rank: int, world_size: int, timeout: timedelta) -> Context | None:
    """The place of a rank in the group of `size` neighbours with which it shares sequences; None: it shares none."""
    if world_size % size:
        raise ConfigError(
            f"train.context_parallel={size} does not divide the number of processes ({world_size})",
            hint=f"start a multiple of {size}, `torchrun --nproc_per_node {size} -m transnormer ...`, or set it to 1",
        )
    if size == 1:
        return None
    group, _ = torch.distributed.new_subgroups(size, timeout=timeout)
    return Context(rank % size, size, group)


_heartbeat: Heartbeat | None = None  # of this process, for whichever of its runs is the current one


def _start_heartbeat(rank: int, world_size: int, timeout: timedelta) -> Heartbeat:
    """One a process: the group outlives a run, and so do the signs of life in its store."""
    global _heartbeat
    if _heartbeat is None:
        # torchrun holds the store itself.
        ours = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        try:
            _heartbeat = Heartbeat(_connection(timeout), rank, world_size, store_is_ours=ours)
        except torch.distributed.DistError as error:
            holder = "rank 0, which holds the store of the group," if ours else "the store of the group"
            raise RankMissing(
                f"{holder} has ended: {str(error).splitlines()[0]}", hint="see what that process printed"
            ) from error
    return _heartbeat


def _connection(timeout: timedelta) -> Any:
    """One to the store of the group for the heartbeat alone: the main one may be busy with waiting.

    A store that answered a moment ago answers at once, or has gone.
    """
    store: Any = torch.distributed.distributed_c10d._get_default_store()
    store.set_timeout(min(timeout, _CONNECTING))
    try:
        connection = store.clone()
    finally:
        store.set_timeout(timeout)
    connection.set_timeout(timeout)
    return connection


def _is_of_group(error: RuntimeError) -> bool:
    """Whether it is about the processes: gloo's have no type of their own, but name the file they come from."""
    words = str(error).lower()
    return isinstance(error, torch.distributed.DistError) or "gloo" in words or "nccl" in words


def _leave() -> None:
    """Close the process group: its threads would abort a process that ends while they run."""
    if _heartbeat is not None:
        _heartbeat.stop()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
