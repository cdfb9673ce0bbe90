"""SIGTERM and SIGINT: counted for a loop that acts on them when it can, or raised where nothing must stay behind."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, Self

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class EvaluationInterrupted(BaseException):
    """A signal arrived during an evaluation, which changes nothing and can be made again after resuming.

    Not an Exception, so that no handler inside an evaluation takes it for one of its own faults.
    """


class Terminated(SystemExit):
    """SIGTERM arrived while something was being written, and what there was of it has been removed.

    Not an Exception, so that no handler takes it for a fault of the data; the exit code is what shells call SIGTERM.
    """


class CountedSignals:
    """SIGTERM and SIGINT, counted while the block lasts."""

    def __init__(self) -> None:
        self.count = 0
        self.received: signal.Signals | None = None  # the last one
        self._handlers = ExitStack()

    def __enter__(self) -> Self:
        self._handlers.enter_context(_handled(STOP_SIGNALS, self._handle))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handlers.close()

    def _handle(self, number: int, _: FrameType | None) -> None:
        self.count += 1
        self.received = signal.Signals(number)


class StopSignals(CountedSignals):
    """SIGTERM and SIGINT as a flag for the step boundary; a second one ends the process at once, files untouched.

    `promise` is what the first one will do, told at once: a step may take longer than a person waits before the second.
    """

    def __init__(self, promise: str = "") -> None:
        super().__init__()
        self._promise = promise
        self._evaluating = False

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

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            _write(f"stopped at once by {signal.Signals(number).name}", show_cursor=True)
            os._exit(128 + number)
        super()._handle(number, frame)
        if self._promise:
            _write(f"{signal.Signals(number).name}: {self._promise}")
        if self._evaluating:
            raise EvaluationInterrupted


@contextmanager
def signals_afterwards() -> Iterator[None]:
    """Signals take effect when the block ends: inside a library that loads files they surface as any error."""
    with StopSignals() as signals:
        yield
    if signals.received:
        signal.raise_signal(signals.received)


@contextmanager
def signals_leave(code: int, words: str) -> Iterator[None]:
    """A signal ends the process at once with this exit code and these words: where all can be done again at no loss."""

    def leave(number: int, _: FrameType | None) -> None:
        os.write(2, f"stopped by {signal.Signals(number).name} {words}\n".encode())
        os._exit(code)

    with _handled(STOP_SIGNALS, leave):
        yield


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """SIGTERM raises Terminated, unwinding the program as Ctrl-C does, instead of ending it amid its files."""
    # Where somebody else handles SIGTERM, that is for them to decide.
    numbers = (signal.SIGTERM,) if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL else ()
    with _handled(numbers, _raise_terminated):
        yield


def _write(line: str, show_cursor: bool = False) -> None:
    """A line on stderr from within a handler; below the bar of a terminal, whose cursor nobody else will show again."""
    is_terminal = os.isatty(2)
    before, after = "\n" * is_terminal, "\x1b[?25h" * (show_cursor and is_terminal)
    with suppress(OSError):  # nobody may be reading
        os.write(2, f"{before}{line}{after}\n".encode())


def _raise_terminated(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # `timeout` sends it twice, and the second must not stop the removing
    raise Terminated(128 + number)


@contextmanager
def _handled(numbers: tuple[signal.Signals, ...], handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Handle signals while the block lasts."""
    # Python allows handlers in the main thread only; elsewhere the embedding program decides about signals.
    in_main_thread = threading.current_thread() is threading.main_thread()
    previous = {number: signal.signal(number, handler) for number in numbers if in_main_thread}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
