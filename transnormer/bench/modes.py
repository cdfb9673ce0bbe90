"""How a step is run: op by op, compiled, or as one CUDA graph; and what is tried next where one of them cannot be."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

import transnormer
from transnormer.cuda_graph import capture
from transnormer.errors import ConfigError, did_you_mean

T = TypeVar("T")
_PACKAGE = Path(transnormer.__file__).parent


@dataclass(frozen=True)
class Way:
    """One way to run a step; inside a graph its kernels may be the compiler's or those of eager PyTorch."""

    mode: str
    compiled: bool

    def __str__(self) -> str:
        return (
            f"{self.mode} of {'compiled' if self.compiled else 'eager'} kernels" if self.mode == "graph" else self.mode
        )


EAGER, COMPILE = Way("eager", False), Way("compile", True)
# What a mode tries, in this order; a row of the benchmark says which one it came to, and why not those before it.
WAYS: dict[str, tuple[Way, ...]] = {
    "eager": (EAGER,),
    "compile": (COMPILE, EAGER),
    "graph": (Way("graph", True), Way("graph", False), COMPILE, EAGER),
}


class CannotRun(Exception):
    """A step cannot be run in some way. `spoilt`: nor can anything else in this process, which must be left."""

    def __init__(self, reason: str, spoilt: bool = False) -> None:
        super().__init__(reason, spoilt)
        self.reason, self.spoilt = reason, spoilt

    def __str__(self) -> str:
        return self.reason


def ways_of(mode: str, device: torch.device) -> tuple[Way, ...]:
    """The ways that a mode tries on a device."""
    if mode not in WAYS:
        raise ConfigError(f"unknown mode '{mode}'", did_you_mean(mode, WAYS))
    if mode == "graph" and device.type != "cuda":
        raise ConfigError("--mode graph records CUDA graphs, and there are none on the CPU", "use --device cuda")
    return WAYS[mode]


def warm_up(step: Callable[[], T], way: Way, times: int = 2) -> None:
    """Run a step until nothing is compiled any more. A model that is to be compiled has been marked so before."""
    try:
        for _ in range(times):
            step()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if not way.compiled:
            raise
        raise CannotRun(f"does not compile: {describe(error)}") from error


def ready(step: Callable[[], T], way: Way) -> Callable[[], T]:
    """What runs a warm step in that way: the step itself, or the replay of a graph."""
    if way.mode != "graph":
        return step
    require_no_waiting(step)
    try:
        return capture(step, warmup=1)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        # PyTorch's allocator and generator believe for ever that a capture is going on (pytorch/pytorch#171263).
        raise CannotRun(f"cannot be captured: {describe(error)}", spoilt=True) from error


def require_no_waiting(step: Callable[[], T]) -> None:
    """Run a warm step once and raise CannotRun if it waits for the GPU: a capture that fails cannot be undone."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
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
        if Path(frame.filename).is_relative_to(_PACKAGE) and "bench" not in Path(frame.filename).parts
    ]
    return lines[0][:200] + (f" ({places[-1]})" if places else "")
