"""A piece of GPU work as one CUDA graph: its kernels start together, without Python between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


class Captured(Generic[T]):
    """A recorded graph; `result` are the tensors of the recording, which every replay fills anew."""

    def __init__(self, graph: torch.cuda.CUDAGraph, result: T) -> None:
        self._graph, self.result = graph, result

    def replay(self) -> T:
        """Run the recorded work again, on the addresses it was recorded with."""
        self._graph.replay()
        return self.result


def capture(step: Callable[[], T], *, warmup: int = 3) -> Captured[T]:
    """Record what `step` does on the GPU.

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
    return Captured(graph, result)
