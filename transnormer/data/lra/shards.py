"""Shards made by several processes at once, handed out in the order of their index."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import TypeVar

from transnormer.errors import ConfigError

Shard = TypeVar("Shard")

# Philox counters of the generators; the streams of `transnormer.data.sampling` are small numbers, these stay clear.
LISTOPS, PATHFINDER = 16, 17


def in_order(make: Callable[[int], Shard], indices: Iterable[int], processes: int) -> Generator[Shard, None, None]:
    """make(index) for each index, in order; only a few shards are made ahead of the reader.

    `make` and what it returns must be picklable when processes > 1. The order, and so the outcome, does not depend on
    the number of processes. Processes are spawned: a script of your own needs the `if __name__ == "__main__":` guard.
    """
    if processes < 1:
        raise ConfigError(
            f"processes is {processes}; at least one is needed", "set processes=1 to stay in this process"
        )
    if processes == 1:
        yield from map(make, indices)
        return
    # Spawned, not forked: the caller may hold a GPU or running threads, which a forked child cannot use.
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), initializer=_end_with_parent)
    try:
        pending: deque[Future[Shard]] = deque()
        for index in indices:
            pending.append(pool.submit(make, index))
            if len(pending) > 2 * processes:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:  # the reader may stop early
        pool.shutdown(wait=True, cancel_futures=True)


def _end_with_parent() -> None:
    """In a worker: end when the process that wants the shards is gone, which cannot say so if it was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
