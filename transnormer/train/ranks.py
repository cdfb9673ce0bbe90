"""The processes of a run, through accelerate: which device and precision, and how ranks add up and agree."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, broadcast_object_list
from torch import Tensor, nn

from transnormer.allocator import keep_freed_memory
from transnormer.config.schema import TrainSection
from transnormer.errors import ConfigError, TransNormerError
from transnormer.mixers.components.context import Context
from transnormer.step.training import Alone
from transnormer.train.threads import Threads, use_threads

T = TypeVar("T")

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
        on_cuda = runs_on_cuda(train)
        precision = {"auto": "bf16" if on_cuda else "no", "bf16": "bf16", "float32": "no"}[train.precision]
        self.threads: Threads | None = None  # of the CPU, where that is what computes
        if not on_cuda:
            keep_freed_memory()
            self.threads = use_threads(train.threads, recorded_threads)
        # accelerate keeps device and precision for the life of the process; each run decides them anew.
        AcceleratorState._reset_state(reset_partial_state=True)
        try:
            self.accelerator = Accelerator(cpu=not on_cuda, mixed_precision=precision)
        except ValueError as error:
            raise ConfigError(f"train.precision={train.precision}: {error}", hint="train.precision=float32") from error
        if self.accelerator.distributed_type not in _SUPPORTED:
            raise ConfigError(
                f"{self.accelerator.distributed_type.value} is not supported",
                hint="launch with one process, or with DDP: `accelerate launch --multi_gpu`",
            )
        self.device: torch.device = self.accelerator.device
        self.rank: int = self.accelerator.process_index
        self.world_size: int = self.accelerator.num_processes
        if self.world_size > 1:
            atexit.unregister(_leave)
            atexit.register(_leave)
        # Where processes share sequences, each group of them has one share of a batch.
        sharing = train.context_parallel
        self.context = _context(sharing, self.rank, self.world_size)
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

    def sum_in_place(self, values: Tensor) -> None:
        """Replace values by their elementwise sum over ranks."""
        if self.world_size > 1:
            torch.distributed.all_reduce(values)

    def sum_floats(self, values: list[float]) -> list[float]:
        """The elementwise sum over ranks, in double precision."""
        if self.world_size == 1:
            return values
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        self.sum_in_place(sums)
        return sums.tolist()

    def share_buffers(self, model: nn.Module) -> None:
        """Give all ranks the buffers of the first, such as a BatchNorm's statistics, which every rank adds to."""
        if self.world_size > 1:
            for buffer in model.buffers():
                torch.distributed.broadcast(buffer, 0)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on some rank."""
        return self.sum_floats([float(flag)])[0] > 0

    def on_main(self, work: Callable[[], T]) -> T:
        """Do something on the main process; every rank gets its value, or raises its error."""
        if self.world_size == 1:
            return work()
        outcome: list[Any] = [None, None]
        if self.is_main:
            try:
                outcome[0] = work()
            except TransNormerError as error:
                outcome[1] = error
        broadcast_object_list(outcome)
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]


def _context(size: int, rank: int, world_size: int) -> Context | None:
    """The place of a rank in the group of `size` neighbours with which it shares sequences; None: it shares none."""
    if world_size % size:
        raise ConfigError(
            f"train.context_parallel={size} does not divide the number of processes ({world_size})",
            hint=f"start a multiple of {size}, `torchrun --nproc_per_node {size} -m transnormer ...`, or set it to 1",
        )
    if size == 1:
        return None
    group, _ = torch.distributed.new_subgroups(size)
    return Context(rank % size, size, group)


def _leave() -> None:
    """Close the process group: its threads would abort a process that ends while they run."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
