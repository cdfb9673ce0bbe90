"""A piece of GPU work as one CUDA graph: its kernels start together, without Python between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def capture(step: Callable[[], T], *, warmup: int = 3) -> Callable[[], T]:
    """Record what `step` does on the GPU; what is returned runs it again and returns the same tensors, filled anew.

    `step` must read and write the same tensors every time and may not wait for the GPU. It runs `warmup` times before
    it is recorded: kernels are compiled and workspaces allocated there, so whoever cares about their effects undoes
    them.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warmup):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()

    def replay() -> T:
        graph.replay()
        return result

    return replay
