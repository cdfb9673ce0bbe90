"""A function run by several CPU processes that form a group (gloo), forked from one that has imported the models."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["transnormer.models.heads", "transnormer.train.ranks"])


def run_in_group(size: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What work(rank, *arguments) returned in each process, in the order of ranks; `work` is of a module."""
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            _FORKS.Process(target=_member, args=(rank, size, folder, work, arguments), daemon=True)
            for rank in range(size)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(300)
        assert [process.exitcode for process in processes] == [0] * size
        return [torch.load(Path(folder, str(rank)), weights_only=False) for rank in range(size)]


def _member(rank: int, size: int, folder: str, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=size)
    torch.save(work(rank, *arguments), Path(folder, str(rank)))
    torch.distributed.destroy_process_group()
