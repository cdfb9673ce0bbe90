"""Shared memory: how much a program may take, and launches that keep fewer loads in flight where there is less.

An H100 gives a program 227 KiB, an A100 163, a GeForce or an L4 99.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor
from triton.runtime.errors import OutOfResources

# Of an H100; no GPU gives more. Also what is said where there is none: kernels are interpreted, or only asked about.
MOST = 232_448

# How many stages a kernel has, by how it is compiled, where it cannot have those that it was written with.
_fewer_stages: dict[tuple[object, ...], int] = {}


@torch.compiler.assume_constant_result
def shared_memory_bytes(device: torch.device) -> int:
    """Bytes that a program may take on a device."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return MOST
    return _of_gpu(torch.cuda.current_device() if device.index is None else device.index)


@cache
def _of_gpu(index: int) -> int:
    properties: dict[str, int] = triton.runtime.driver.active.utils.get_device_properties(index)
    return properties["max_shared_mem"]


def launch(kernel: Any, grid: tuple[int, ...]) -> Callable[..., None]:
    """kernel[grid], with as many stages of loads in flight as it is given, or as the device has shared memory for.

    How much a stage takes is known once the kernel is compiled.
    """

    def run(tensor: Tensor, *others: Any, num_stages: int, **options: Any) -> None:
        def compiled_as() -> tuple[object, ...]:
            return (kernel, tensor.device, tensor.dtype, *options.items())

        stages = _fewer_stages.get(compiled_as(), num_stages) if _fewer_stages else num_stages
        while True:
            try:
                kernel[grid](tensor, *others, num_stages=stages, **options)
            except OutOfResources as error:
                if stages == 1 or error.name != "shared memory":
                    raise
                stages -= 1
                _fewer_stages[compiled_as()] = stages
            else:
                return

    return run
