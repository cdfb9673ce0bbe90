"""Work done by several processes at once, its results handed out in order."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from transnormer.errors import ConfigError, TransNormerError

PATIENCE = 600  # seconds for one item; a slow machine takes a few

Item = TypeVar("Item")
Made = TypeVar("Made")


def cores() -> int:
    """The CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(make: Callable[[Item], Made], items: Iterable[Item], processes: int) -> Generator[Made, None, None]:
    """make(item) for each item, in order; only a few are made ahead of the reader.

    `make`, items and results must be picklable when processes > 1. The order, and so the outcome, does not depend on
    the number of processes. Processes are spawned: a script of your own needs the `if __name__ == "__main__":` guard.
    """
    if processes < 1:
        raise ConfigError(
            f"processes is {processes}; at least one is needed", "set processes=1 to stay in this process"
        )
    if processes == 1:
        yield from map(make, items)
        return
    # Spawned, not forked: the caller may hold a GPU or running threads, which a forked child cannot use.
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), initializer=_start)
    try:
        pending: deque[Future[Made]] = deque()
        for item in items:
            pending.append(pool.submit(make, item))
            if len(pending) > 2 * processes:
                yield pending.popleft().result(PATIENCE)
        while pending:
            yield pending.popleft().result(PATIENCE)
    except BrokenProcessPool:
        hint = "it may have run out of memory: use fewer with --processes"
        raise TransNormerError("a worker process was killed", hint) from None
    except TimeoutError:
        pids = _kill(pool)
        raise TransNormerError(
            f"no result for {PATIENCE:,} s: a worker, one of the processes {', '.join(map(str, pids))}, is frozen",
            "they were ended; prepare again, with --processes 1 if it happens again",
        ) from None
    except BaseException:  # the reader stops early, or a signal does: nobody wants what they make, or waits for it
        _kill(pool)
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _kill(pool: ProcessPoolExecutor) -> list[int]:
    """End the workers of a pool, which would wait for those that are frozen, too; returns who they were."""
    workers = dict(pool._processes)
    for worker in workers.values():
        worker.kill()
    # The pool would wait for the rest of a result that one of them was handing over: now it has an end there.
    pool._result_queue._writer.close()  # type: ignore[attr-defined]
    return sorted(workers)


def _start() -> None:
    """In a worker: end when the process that wants the results is gone, which cannot say so if it was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group, and the parent decides
    # The workers are what runs in parallel; without threads at all, which one can ask for too, tokenizers is slower.
    os.environ["RAYON_NUM_THREADS"] = "1"
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
