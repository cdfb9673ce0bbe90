"""The GPU-sharing service, by a control program that writes down what it is asked and keeps its daemon in a file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from transnormer.experiments import mps

CONTROL = """#!/bin/sh
# As nvidia-cuda-mps-control: -d starts a daemon, without it commands are read. FAULT makes something go wrong.
pipe="${CUDA_MPS_PIPE_DIRECTORY:-$FAKE/default}"
if [ "$1" = "-d" ]; then
    echo "start $pipe" >> "$FAKE/asked"
    [ "$FAULT" = start ] && { echo "no permission"; exit 1; }
    [ -d "$pipe" ] && [ -d "$CUDA_MPS_LOG_DIRECTORY" ] || { echo "no folder"; exit 1; }
    touch "$pipe/daemon"
    # A daemon that keeps the output open must not keep the caller waiting.
    sleep 30 & echo $! > "$FAKE/sleeper"
    exit 0
fi
read command
[ -f "$pipe/daemon" ] || { echo "Cannot find MPS control daemon process"; exit 1; }
[ "$command" = get_server_list ] && { [ "$FAULT" = server ] || echo 4711; exit 0; }
echo "$command $pipe" >> "$FAKE/asked"
[ "$command" = quit ] && rm "$pipe/daemon"
"""


class Fake:
    """The control program's memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []

    @property
    def asked(self) -> list[str]:
        path = self.folder / "asked"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    folder = tmp_path / "fake"
    (folder / "bin").mkdir(parents=True)
    (folder / "default").mkdir()
    program = folder / "bin" / mps.CONTROL
    program.write_text(CONTROL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE", str(folder))
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(mps, "PROBE", (sys.executable, "-I", "-c", "pass"))
    monkeypatch.setattr(mps, "_LONGEST_FOLDER", 1000)
    yield_ = Fake(folder)
    yield yield_
    if (folder / "sleeper").exists():
        os.kill(int((folder / "sleeper").read_text()), 9)


def where_the_probe_hangs(command: Any, run: Any = subprocess.run, **options: Any) -> Any:
    if command == mps.PROBE:
        raise subprocess.TimeoutExpired(command, options["timeout"])
    return run(command, **options)


def test_a_daemon_for_the_time_of_the_block(fake: Fake, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / ".mps"
    with mps.shared_gpu(folder, fake.said.append) as environment:
        assert environment["CUDA_MPS_PIPE_DIRECTORY"] == str(folder / "pipe")
        assert Path(environment["CUDA_MPS_LOG_DIRECTORY"]).is_dir()
        assert fake.asked == [f"start {folder / 'pipe'}"]
        assert (folder / "pipe" / "daemon").exists()
    assert fake.asked[1:] == [f"quit {folder / 'pipe'}"]
    assert fake.said == []


def test_the_daemon_ends_with_an_error_in_the_block(fake: Fake, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), mps.shared_gpu(tmp_path, fake.said.append):
        raise ZeroDivisionError
    assert fake.asked[-1] == f"quit {tmp_path / 'pipe'}"


def test_one_that_is_running_is_used_and_left_running(fake: Fake, tmp_path: Path) -> None:
    (fake.folder / "default" / "daemon").touch()
    with mps.shared_gpu(tmp_path / "mps", fake.said.append) as environment:
        assert environment == {}
    assert fake.asked == []
    assert (fake.folder / "default" / "daemon").exists()
    assert fake.said == ["the processes share the GPU through the MPS daemon that is running already"]


def test_one_that_a_killed_runner_left_is_taken_over_and_ended(fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "pipe").mkdir()
    (tmp_path / "pipe" / "daemon").touch()
    with mps.shared_gpu(tmp_path, fake.said.append) as environment:
        assert environment
        assert fake.asked == []
    assert fake.asked == [f"quit {tmp_path / 'pipe'}"]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("start", "its daemon does not start: no permission"),
        ("server", "its server does not start"),
        ("client", "a process could not connect to it"),
        ("hang", "a process could not connect to it"),
        ("path", "is too long for its sockets"),
    ],
)
def test_where_it_does_not_work_one_line_says_so(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, reason: str
) -> None:
    monkeypatch.setenv("FAULT", fault)
    if fault == "client":
        monkeypatch.setattr(mps, "PROBE", (sys.executable, "-I", "-c", "raise SystemExit(1)"))
    if fault == "hang":
        monkeypatch.setattr(mps.subprocess, "run", where_the_probe_hangs)
    if fault == "path":
        monkeypatch.setattr(mps, "_LONGEST_FOLDER", 10)
    with mps.shared_gpu(tmp_path, fake.said.append) as environment:
        assert environment == {}
    (line,) = fake.said
    assert reason in line
    assert line.endswith("the processes will take turns on the GPU")
    started = any(asked.startswith("start") for asked in fake.asked)
    assert started == (fault != "path")
    assert not (tmp_path / "pipe" / "daemon").exists(), "nothing stays behind"


def test_without_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said: list[str] = []
    with mps.shared_gpu(tmp_path / "mps", said.append) as environment:
        assert environment == {}
    assert said == ["no nvidia-cuda-mps-control on PATH: the processes will take turns on the GPU"]
    assert not (tmp_path / "mps").exists()
