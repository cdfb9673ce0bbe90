"""How a step runs: op by op, compiled, or compiled and recorded as one CUDA graph."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

import transnormer
from transnormer.config.schema import TrainSection
from transnormer.cuda_graph import capture
from transnormer.errors import ConfigError

Name = Literal["eager", "compile", "cuda_graph"]
T = TypeVar("T")
RUNS_BEFORE_RECORDING = 4  # of a function that becomes a graph; whoever cares about their effects undoes them
_PACKAGE = Path(transnormer.__file__).parent


class CannotRun(Exception):
    """A function cannot be run in some way. `spoilt`: nor can anything else in this process, which must be left."""

    def __init__(self, reason: str, spoilt: bool = False) -> None:
        super().__init__(reason, spoilt)
        self.reason, self.spoilt = reason, spoilt

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True)
class Execution:
    """A way to run functions on a device, with matrix products in bf16 or not.

    A graph is made of compiled kernels, or (`compiled` false) of eager PyTorch's, where a compiler fails.
    """

    name: Name
    device: torch.device
    bf16: bool = False
    compiled: bool = True

    def __str__(self) -> str:
        return self.name if self.compiled or self.name != "cuda_graph" else "cuda_graph of eager kernels"

    @property
    def compiles(self) -> bool:
        """Whether a compiler sees the function."""
        return self.name == "compile" or (self.name == "cuda_graph" and self.compiled)

    @property
    def records(self) -> bool:
        """Whether functions become graphs; those of a CPU run as they are, which is how their results are tested."""
        return self.name == "cuda_graph" and self.device.type == "cuda"

    def autocast(self) -> AbstractContextManager[Any]:
        """Matrix products in bf16, where that is the precision."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.bf16 else nullcontext()

    def compile(self, function: Callable[..., T]) -> Callable[..., T]:
        """The function as a compiler leaves it; inside a graph nothing may be left to Python."""
        if not self.compiles or (self.name == "cuda_graph" and not self.records):
            return function
        return torch.compile(function, fullgraph=self.records, dynamic=False)

    def prepare(self, function: Callable[[], T]) -> Callable[[], T]:
        """What runs the function from now on, with nothing left to compile; raises CannotRun where that cannot be had.

        It has then run up to RUNS_BEFORE_RECORDING times; eagerly, not at all.
        """
        if self.name == "eager" or (self.name == "cuda_graph" and not self.records):
            return function
        try:
            for _ in range(2):
                function()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if not self.compiles:
                raise
            raise CannotRun(f"does not compile: {describe(error)}") from error
        if not self.records:
            return function
        require_no_waiting(function)
        try:
            return capture(function, warmup=1)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            # PyTorch's allocator and generator believe for ever that a capture is going on (pytorch/pytorch#171263).
            raise CannotRun(f"cannot be captured: {describe(error)}", spoilt=True) from error


def require_no_waiting(function: Callable[[], object]) -> None:
    """Run a warm function once and raise CannotRun if it waits for the GPU: a capture that fails cannot be undone."""
    torch.cuda.synchronize()
    with warnings.catch_warnings():  # PyTorch says of this mode that it may overlook something
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        function()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if "synchronizing" not in str(error):
            raise
        raise CannotRun(f"waits for the GPU: {describe(error)}") from error
    finally:
        torch.cuda.set_sync_debug_mode("default")


def describe(error: BaseException) -> str:
    """The first line of an error, and the innermost place in this package that it passed through."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    places = [
        f"{Path(frame.filename).relative_to(_PACKAGE)}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(_PACKAGE)
        and not {"bench", "step"} & set(Path(frame.filename).relative_to(_PACKAGE).parts)
    ]
    return lines[0][:200] + (f" ({places[-1]})" if places else "")


def choose_execution(train: TrainSection, device: torch.device, world_size: int) -> Name:
    """What `train.execution` means on this device."""
    obstacle = _obstacle_to_graph(train, device, world_size)
    if train.execution == "cuda_graph" and obstacle:
        raise ConfigError(f"train.execution=cuda_graph {obstacle}", hint="use train.execution=auto")
    if train.parallel == "fsdp":
        if train.execution not in ("auto", "eager"):
            raise ConfigError(
                f"train.execution={train.execution} has not been tested with train.parallel=fsdp",
                hint="use train.execution=auto, which is eager there, or train.parallel=ddp",
            )
        return "eager"
    if train.execution != "auto":
        return train.execution
    if device.type != "cuda":
        return "eager"
    return "compile" if obstacle else "cuda_graph"


def _obstacle_to_graph(train: TrainSection, device: torch.device, world_size: int) -> str | None:
    if device.type != "cuda":
        return "needs a CUDA device"
    if world_size > 1:
        return "works in one process, not in several"
    if train.gradient_checkpointing:
        return "has not been tested with train.gradient_checkpointing"
    return None
