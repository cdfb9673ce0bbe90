"""A process that imports everything once and then forks a real `transnormer` command per request.

Importing torch and transformers takes seconds; a fork of a process that has them takes milliseconds, and can be killed,
stopped and starved of disk like any other. Requests and replies are JSON lines:

    {"arguments": ["train", ...], "log": path, "fault": [name, {option: value}] | null, "environment": {}}  ->  pid
    {"wait": pid}                                       ->  exit code, -n if signal n ended it; hung after five minutes
    {"wait_for_stop": pid}                              ->  stopped when it has stopped itself, or as above
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any, NoReturn

import faults

import transnormer.models.heads
import transnormer.tasks.causal_lm
import transnormer.tasks.masked_lm
import transnormer.train.loop  # noqa: F401 (imported for the forks)
from transnormer.cli.app import main as command
from transnormer.mixers.registry import list_mixers


def serve() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            reply(wait(request["wait"]))
            continue
        if "wait_for_stop" in request:
            reply(wait(request["wait_for_stop"], os.WUNTRACED))
            continue
        pid = os.fork()
        if pid == 0:
            run(**request)
        reply(pid)


def wait(pid: int, options: int = 0) -> int | str:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        changed, status = os.waitpid(pid, os.WNOHANG | options)
        if changed:
            return "stopped" if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "hung"


def reply(answer: int | str) -> None:
    print(answer, flush=True)


def run(
    arguments: list[str], log: str, fault: tuple[str, dict[str, Any]] | None, environment: dict[str, str]
) -> NoReturn:
    code = 1
    try:
        os.environ.update(environment)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        if fault:
            getattr(faults, fault[0])(**fault[1])
        try:
            command(arguments)
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
    list_mixers()  # imports them all
    serve()
