"""Faults that a forked command inflicts on itself: the tests' side of what hardware and schedulers do to real runs."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_FILE_EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "os.truncate"}


def at_file_operation(run: str, step: int, number: int, signals: list[int]) -> None:
    """Send ourselves signals just before the `number`-th file operation of the checkpoint of `step`."""

    def strike(count: int, _: str) -> None:
        if count == number:
            for name in signals:
                os.kill(os.getpid(), name)

    _watch_save(run, step, strike)


def refuse_file_operation(run: str, step: int, number: int, error: int) -> None:
    """Let the `number`-th file operation of the checkpoint of `step` fail with an error of the system."""

    def refuse(count: int, operation: str) -> None:
        if count == number:
            raise OSError(error, os.strerror(error), operation.split()[1])

    _watch_save(run, step, refuse)


def list_file_operations(run: str, step: int, into: str) -> None:
    """Write down the file operations of the checkpoint of `step`, pruning of older ones included."""

    def note(_: int, operation: str) -> None:
        with open(into, "a") as file:  # noqa: PTH123 (an audit hook had better be plain)
            file.write(operation + "\n")

    _watch_save(run, step, note)


def disk_full_at_save(run: str, step: int, limit: int) -> None:
    """From the checkpoint of `step` on, no file may grow beyond `limit` bytes."""

    def fill(count: int, _: str) -> None:
        if count == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    _watch_save(run, step, fill)


def come_late(rank: int, seconds: float) -> None:
    """Let a rank pause where it has joined the group and makes its own connection to the first one."""
    from transnormer.train import ranks

    start = ranks._start_heartbeat

    def late(*arguments: Any) -> Any:
        if int(os.environ["RANK"]) == rank:
            time.sleep(seconds)
        return start(*arguments)

    ranks._start_heartbeat = late


def refuse_sync(number: int, error: int) -> None:
    """Let the `number`-th wait for the disk, of a file or a folder, fail with an error of the system."""
    fsync, count = os.fsync, 0

    def refused(descriptor: int) -> None:
        nonlocal count
        count += 1
        if count == number:
            raise OSError(error, os.strerror(error))
        fsync(descriptor)

    os.fsync = refused


def stop_at_saves(run: str, steps: list[int]) -> None:
    """Stop (SIGSTOP) just before the checkpoint of each of these steps."""

    def stop(count: int, _: str) -> None:
        if count == 0:
            os.kill(os.getpid(), signal.SIGSTOP)

    for step in steps:
        _watch_save(run, step, stop)


def stop_at_step(step: int) -> None:
    """Stop (SIGSTOP) when a step (counted from 1) is about to be made: who waits for that cannot come too late."""

    def stop(at: int) -> None:
        if at == step:
            os.kill(os.getpid(), signal.SIGSTOP)

    _before_steps(stop)


def late_rank(rank: int, step: int, seconds: float) -> None:
    """Let one rank sleep before a step: it is alive, but others wait for it."""

    def delay(at: int) -> None:
        if at == step and os.environ["RANK"] == str(rank):
            time.sleep(seconds)

    _before_steps(delay)


def slow_then_held(seconds: float, steps: int, note: str) -> None:
    """Make every step take at least so long; after so many, say so in a file and wait to be told to stop."""
    left = steps

    def delay(_: int) -> None:
        nonlocal left
        left -= 1
        time.sleep(seconds)
        if left < 0:
            Path(note).touch()
            handler: Any = signal.getsignal(signal.SIGTERM)
            while not handler.__self__.received:
                time.sleep(0.002)

    _before_steps(delay)


def _before_steps(act: Callable[[int], None]) -> None:
    """Call `act` with the number of each step before it is made."""
    from transnormer.train.learner import Learner

    advance = Learner.advance

    def acted(self: Any, step: int, batches: Any) -> Any:
        act(step + 1)
        return advance(self, step, batches)

    Learner.advance = acted  # type: ignore[method-assign]


def poison_batch(step: int) -> None:
    """Make one parameter's gradient NaN when the batch of a step is met, as an overflow in one layer would."""
    import torch

    from transnormer.step.training import TrainingStep

    feeds_of = TrainingStep._feeds_of

    def poisoned(self: Any, batch_index: int) -> Any:
        if batch_index + 1 == step:
            weight = next(self.model.parameters())
            weight.register_hook(lambda gradient: torch.full_like(gradient, float("nan")))
        return feeds_of(self, batch_index)

    TrainingStep._feeds_of = poisoned  # type: ignore[method-assign]


def poison_input(step: int, value: str) -> None:
    """Make what one token is embedded as NaN or infinite when the batch of a step is met first."""
    from transnormer.step.training import TrainingStep

    feeds_of = TrainingStep._feeds_of

    def poison(_: Any, __: Any, embedded: Any) -> Any:
        embedded = embedded.clone()
        embedded[0, 0] = float(value)
        return embedded

    def poisoned(self: Any, batch_index: int) -> Any:
        if batch_index + 1 == step:
            self.model.get_input_embeddings().register_forward_hook(poison)
        return feeds_of(self, batch_index)

    TrainingStep._feeds_of = poisoned  # type: ignore[method-assign]


def poison_shard(rank: int, step: int) -> None:
    """Make one gradient infinite in the shard of one rank, when the batch of a step is met first."""
    from transnormer.step.training import TrainingStep

    gradients_of, made = TrainingStep._gradients, itertools.count()

    def poisoned(self: Any, loss: Any) -> Any:
        gradients = gradients_of(self, loss)
        if next(made) // len(self._micro_batches) + 1 == step and os.environ["RANK"] == str(rank):
            gradients[0][0] = float("inf")
        return gradients

    TrainingStep._gradients = poisoned  # type: ignore[method-assign]


def _watch_save(run: str, step: int, act: Callable[[int, str], None]) -> None:
    """Call `act` with the count and name of each file operation from one checkpoint's beginning to the next one's."""
    count = -1
    begun: str | None = None
    busy = False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count, begun, busy
        if event not in _FILE_EVENTS or busy:
            return
        paths = [str(argument) for argument in arguments if isinstance(argument, str | os.PathLike)]
        if event == "os.mkdir" and ".tmp-step-" in paths[0]:
            begun = Path(paths[0]).name
        relative_in_rmtree = event in {"os.remove", "os.rmdir"}
        if begun == f".tmp-step-{step:08d}" and (relative_in_rmtree or any(path.startswith(run) for path in paths)):
            count += 1
            busy = True
            try:
                act(count, f"{event} {' '.join(paths)}")
            finally:
                busy = False

    sys.addaudithook(hook)


def stop_at_call(name: str) -> None:
    """Stop (SIGSTOP) just before a function that the learner calls by this name."""
    from transnormer.train import learner

    called = getattr(learner, name)

    def stopped(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGSTOP)
        return called(*arguments)

    setattr(learner, name, stopped)
