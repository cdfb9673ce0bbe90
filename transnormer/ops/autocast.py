"""What autocast would make of a tensor, and how it is kept away; it exists on every device but `meta`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def matmul_dtype(x: Tensor) -> torch.dtype:
    """The dtype that a matrix product would take `x` in: autocast's where it is on, which leaves float64 alone."""
    if (
        x.is_floating_point()
        and x.dtype != torch.float64
        and _may_be_on(x.device)
        and torch.is_autocast_enabled(x.device.type)
    ):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def in_autocast_dtype(x: Tensor) -> Tensor:
    """Under autocast a kernel computes in the dtype that a matrix product would take."""
    return x.to(matmul_dtype(x))


def in_range_of_sums(x: Tensor) -> Tensor:
    """The same, but float16 as float32: a sum over a sequence soon leaves its range, which ends at 65,504."""
    dtype = matmul_dtype(x)
    return x.to(torch.float32 if dtype == torch.float16 else dtype)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Inside, autocast leaves matrix products in the dtype of their operands."""
    return torch.autocast(device.type, enabled=False) if _may_be_on(device) else nullcontext()


def _may_be_on(device: torch.device) -> bool:
    return device.type != "meta"  # asking torch which devices have an autocast cannot be compiled (torch 2.11)
