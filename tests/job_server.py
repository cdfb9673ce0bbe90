"""A process that imports everything once and then forks real `transnormer` commands, many at the same time.

python job_server.py SOCKET

A run whose folder is named in HOLD waits after step HELD_STEP until it is told to stop, so that it cannot be finished
before a test has disturbed it.

Runners start their jobs as processes of their own, and importing torch and transformers takes seconds for each; a fork
of a process that has them takes milliseconds. `job_client.py` stands in for `python -m transnormer`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import torch

import transnormer.models.heads
import transnormer.tasks.causal_lm
import transnormer.tasks.lra
import transnormer.train.loop  # noqa: F401 (imported for the forks)
from transnormer.cli.app import main as command
from transnormer.experiments import job, runner  # noqa: F401
from transnormer.journal import Journal
from transnormer.mixers.registry import list_mixers

HELD_STEP = 5


def hold_runs() -> None:
    append = Journal.append

    def held(self: Journal, line: dict[str, Any]) -> None:
        append(self, line)
        is_step = (line["kind"], line.get("step")) == ("train", HELD_STEP)
        if is_step and self.path.parent.name in os.environ.get("HOLD", "").split(","):
            handler: Any = signal.getsignal(signal.SIGTERM)
            while not handler.__self__.received:
                time.sleep(0.01)

    Journal.append = held


def serve(path: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the attendants
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(16)
    listener.settimeout(5)
    parent = os.getppid()
    print("ready", flush=True)
    while os.getppid() == parent:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        connection.settimeout(None)
        if os.fork() == 0:
            listener.close()
            attend(connection)
        connection.close()


def attend(connection: socket.socket) -> NoReturn:
    """Run one command and tell the client its pid and its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, outputs, _, _ = socket.recv_fds(connection, 4, 2)
    stream = connection.makefile("rb")
    request = json.loads(stream.read(int.from_bytes(size, "little")))
    pid = os.fork()
    if pid == 0:
        connection.close()
        run(request, outputs)
    connection.sendall(f"{pid}\n".encode())
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        connection.sendall(f"{code}\n".encode())
    finally:
        os._exit(0)


def run(request: dict[str, Any], outputs: list[int]) -> NoReturn:
    code = 1
    try:
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        for number, output in zip((1, 2), outputs, strict=True):
            os.dup2(output, number)
        try:
            command(request["arguments"])
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:  # noqa: BLE001 (a crash of the command is an exit code to the tests)
            sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    torch.set_num_threads(1)
    list_mixers()  # imports them all
    hold_runs()
    job.PROGRAM = (sys.executable, "-I", str(Path(__file__).with_name("job_client.py")), sys.argv[1])
    serve(sys.argv[1])
