"""Asks the fork server for a real `transnormer` command and behaves like it: output, signals, exit code.

python job_client.py SOCKET ARGUMENT...
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path

_pid: int | None = None
_early: list[int] = []


def forward(number: int, _: object) -> None:
    """To the command, or to nobody yet."""
    if _pid is None:
        _early.append(number)
    else:
        os.kill(_pid, number)


def request(path: str, arguments: list[str], environment: dict[str, str]) -> socket.socket:
    """Send a request; the reply is two lines, the pid and then the exit code."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    text = json.dumps({"arguments": arguments, "environment": environment, "folder": str(Path.cwd())}).encode()
    socket.send_fds(connection, [len(text).to_bytes(4, "little")], [1, 2])
    connection.sendall(text)
    return connection


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    replies = request(sys.argv[1], sys.argv[2:], dict(os.environ)).makefile()
    _pid = int(replies.readline())
    for number in _early:
        os.kill(_pid, number)
    code = int(replies.readline())
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)
