"""Work in a process of its own: it can be given up after a while, and take what it broke with it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class WorkerLost(Exception):
    """The process took too long, or died."""


class Worker:
    """Runs functions one after the other in a process that is started when needed, and anew after `restart`."""

    def __init__(self) -> None:
        self._process: Any = None
        self._connection: Connection | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.restart(patience=10)

    def run(self, function: Callable[..., T], *arguments: Any, limit: float | None = None) -> T:
        """What `function` returns or raises there; WorkerLost after `limit` seconds or when the process dies."""
        connection = self._connected()
        connection.send((function, arguments))
        ready = wait([connection, self._process.sentinel], limit)
        if not ready:
            self.restart()
            raise WorkerLost(f"took more than {limit:.0f} s")
        try:
            raised, outcome = connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            code = self._process.exitcode
            self.restart()
            raise WorkerLost(f"the process died with exit code {code}") from None
        if raised:
            raise outcome
        return outcome

    def restart(self, patience: float = 0) -> None:
        """End the process, which has `patience` seconds to tidy up; the next `run` starts another."""
        if self._process is not None:
            assert self._connection is not None
            self._connection.close()
            self._process.join(patience)
            self._process.kill()
            self._process.join()
        self._process = self._connection = None

    def _connected(self) -> Connection:
        if self._process is not None and not self._process.is_alive():
            self.restart()
        if self._connection is None:
            # Not forked: a CUDA context does not survive that.
            context = multiprocessing.get_context("spawn")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs,))
            self._process.start()
            theirs.close()
        return self._connection


def _serve(connection: Connection) -> None:
    """Answer calls until the other side is gone."""
    while True:
        try:
            function, arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = False, function(*arguments)
        except Exception as error:  # noqa: BLE001 - raised again on the other side
            answer = True, error
        connection.send(answer)
