"""What stands between a fault and the weights: signals that wait for the step boundary, and tests for finiteness."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class EvaluationInterrupted(BaseException):
    """A signal arrived during an evaluation, which changes nothing and can be made again after resuming.

    Not an Exception, so that no handler inside an evaluation takes it for one of its own faults.
    """


class StopSignals:
    """SIGTERM and SIGINT as a flag for the step boundary; a second one ends the process at once, files untouched."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._evaluating = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        # Python allows handlers in the main thread only; elsewhere the embedding program decides about signals.
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def interrupting_evaluation(self) -> Iterator[None]:
        """While this is open, a signal raises EvaluationInterrupted: grace periods are shorter than evaluations."""
        self._evaluating = True
        try:
            if self.received:
                raise EvaluationInterrupted
            yield
        finally:
            self._evaluating = False

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.received:
            os._exit(128 + number)
        self.received = signal.Signals(number)
        if self._evaluating:
            raise EvaluationInterrupted


@contextmanager
def signals_afterwards() -> Iterator[None]:
    """Signals take effect when the block ends: inside a library that loads files they surface as any error."""
    with StopSignals() as signals:
        yield
    if signals.received:
        signal.raise_signal(signals.received)


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether no entry of any tensor is NaN or infinite."""
    verdicts = [tensor.isfinite().all() for tensor in tensors]
    return bool(torch.stack(verdicts).all()) if verdicts else True
