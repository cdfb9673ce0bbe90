"""NVIDIA's Multi-Process Service: kernels of several processes on one GPU at the same time instead of time-sliced.

A control daemon listens in CUDA_MPS_PIPE_DIRECTORY; processes with that variable become its clients, and the first of
them makes it start a server. (NVIDIA, "Multi-Process Service", and nvidia-cuda-mps-control(1).)
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
_LONGEST_FOLDER = 80  # the daemon's sockets lie in it, and the path of a socket has at most 107 bytes
_TIMEOUT = 60.0
# A client of the driver alone, which takes no time to import: makes a context on the first visible GPU.
PROBE: tuple[str, ...] = (
    sys.executable,
    "-c",
    "import ctypes, sys; cuda = ctypes.CDLL('libcuda.so.1'); context = ctypes.c_void_p(); "
    "sys.exit(bool(cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)))",
)


@contextmanager
def shared_gpu(folder: Path, say: Callable[[str], None]) -> Iterator[dict[str, str]]:
    """Yields the environment in which processes share the GPU; a daemon that was started for it ends with the block.

    Where there is no such service, or it does not work, one line says so and the environment is empty.
    """
    if shutil.which(CONTROL) is None:
        say(f"no {CONTROL} on PATH: the processes will take turns on the GPU")
        yield {}
        return
    if _server_list({}) is not None:
        say("the processes share the GPU through the MPS daemon that is running already")
        yield {}
        return
    environment = {
        "CUDA_MPS_PIPE_DIRECTORY": str(folder.resolve() / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(folder.resolve() / "log"),
    }
    try:
        problem = _start(environment)
        if problem:
            say(f"MPS does not work here ({problem}): the processes will take turns on the GPU")
            yield {}
        else:
            yield environment
    finally:
        if _server_list(environment) is not None and _control(environment, "quit") is None:
            say(f"the MPS daemon of {folder} does not end; stop it with: {_as_typed(environment)}")


def _as_typed(environment: dict[str, str]) -> str:
    return f"echo quit | CUDA_MPS_PIPE_DIRECTORY={environment['CUDA_MPS_PIPE_DIRECTORY']} {CONTROL}"


def _start(environment: dict[str, str]) -> str | None:
    """Start a daemon, or take over the one that a killed runner left here, and try it; returns what is wrong."""
    if len(environment["CUDA_MPS_PIPE_DIRECTORY"]) > _LONGEST_FOLDER:
        return f"the path of {environment['CUDA_MPS_PIPE_DIRECTORY']} is too long for its sockets"
    if _server_list(environment) is None:
        for folder in environment.values():
            Path(folder).mkdir(parents=True, exist_ok=True)
        done = _run([CONTROL, "-d"], environment)
        if done is None or done.returncode != 0:
            return "its daemon does not start" + (f": {done.stdout.strip()}" if done and done.stdout.strip() else "")
    probed = _run(PROBE, environment)
    if probed is None or probed.returncode != 0:
        return "a process could not connect to it"
    if not _server_list(environment):  # a client that finds no daemon goes on without one, and without a word
        return "its server does not start"
    return None


def _server_list(environment: dict[str, str]) -> str | None:
    """The servers of the daemon, '' when it has none yet; None when there is no daemon."""
    done = _control(environment, "get_server_list")
    if done is None or done.returncode != 0 or "Cannot find MPS control daemon" in done.stdout:
        return None
    return done.stdout.strip()


def _control(environment: dict[str, str], command: str) -> subprocess.CompletedProcess[str] | None:
    return _run([CONTROL], environment, command + "\n")


def _run(
    command: Sequence[str], environment: dict[str, str], text: str = ""
) -> subprocess.CompletedProcess[str] | None:
    """The ended process with what it printed; None if it did not end."""
    # Through files: a pipe would stay open for as long as a daemon that the command leaves behind.
    with tempfile.TemporaryFile("w+") as words, tempfile.TemporaryFile("w+") as output:
        words.write(text)
        words.seek(0)
        try:
            done = subprocess.run(
                command,
                stdin=words,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
                timeout=_TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            return None
        output.seek(0)
        return subprocess.CompletedProcess(done.args, done.returncode, output.read())
