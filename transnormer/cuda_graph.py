"""A piece of GPU work as one CUDA graph: its kernels start together, without Python between them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch

T = TypeVar("T")


@cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """The one stream on which a device's graphs are recorded: cuBLAS keeps a workspace for every stream it has seen."""
    return torch.cuda.Stream(device)


def capture(step: Callable[[], T], *, warmup: int = 3) -> Callable[[], T]:
    """Record what `step` does on the GPU; what is returned runs it again and returns the same tensors, filled anew.

    `step` must read and write the same tensors every time and may not wait for the GPU. It runs `warmup` times before
    it is recorded: kernels are compiled and workspaces allocated there, so whoever cares about their effects undoes
    them.
    """
    # A gradient is added up on the stream where its parameter was first used, as long as anything of that use is left,
    # garbage too; a recording cannot wait for another stream.
    gc.collect()
    side = _side_stream(torch.cuda.current_device())
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warmup):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        result = step()

    def replay() -> T:
        graph.replay()
        return result

    return replay
