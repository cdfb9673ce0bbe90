"""What a run ran on: versions, hardware, commit, command line. Recorded, never acted upon."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from transnormer import __version__

_PACKAGES = ("torch", "triton", "transformers", "accelerate", "safetensors", "tokenizers", "numpy")
_SOURCE = Path(__file__).resolve().parent


def describe_environment() -> dict[str, Any]:
    """All of it, as JSON values."""
    return {
        **describe_process(),
        "versions": versions(),
        "hardware": hardware(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
    }


def describe_process() -> dict[str, Any]:
    """What this process is, when it began to describe itself, and from which source."""
    return {
        "command": ["transnormer", *(without_folder(argument) for argument in sys.argv[1:])],
        "commit": source_commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def without_folder(text: str) -> str:
    """Records are published: an absolute path, also that of key=path, keeps its name only."""
    key, equals, value = text.partition("=")
    if Path(text).is_absolute():
        return Path(text).name
    return f"{key}={Path(value).name}" if equals and Path(value).is_absolute() else text


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of those that decide numbers."""
    found = {"python": platform.python_version(), "transnormer": __version__}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, Any]:
    """Processor and accelerators by name."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {"cpu": _cpu_name(), "cores": os.cpu_count(), "gpus": gpus}


def source_commit() -> str | None:
    """The git commit of this package's source, '-dirty' if edited since; None where nobody knows it.

    TRANSNORMER_COMMIT names it for a copy that came without its repository, or with another's.
    """
    if named := os.environ.get("TRANSNORMER_COMMIT"):
        return named
    # An installed package may lie inside somebody else's repository: only one that tracks this file counts.
    if _git("ls-files", "--error-unmatch", "errors.py") is None:
        return None
    commit = _git("rev-parse", "HEAD")
    return f"{commit}-dirty" if commit and _git("status", "--porcelain", "--untracked-files=no") else commit


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(_SOURCE), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
