"""What can be said about a Ray cluster without Ray: whether it answers, and how its nodes are shared out to jobs."""

from __future__ import annotations

import importlib.util
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from transnormer.errors import ConfigError
from transnormer.experiments.executor import Executor

PATIENCE = 30.0  # seconds for a cluster to answer: one that is being started takes a few
_PAUSE = 0.5  # seconds between two attempts
_STEPS = 10_000  # Ray counts resources in ten-thousandths


@contextmanager
def connected(address: str | None) -> Iterator[Executor]:
    """The cluster at HOST:PORT, or at RAY_ADDRESS, while the block lasts."""
    address = address or os.environ.get("RAY_ADDRESS")
    if not address:
        raise ConfigError(
            "--runner ray: which cluster is not said",
            hint="--ray-address HOST:PORT, or RAY_ADDRESS; `ray start --head` starts a cluster and says its address",
        )
    host, port = _parse(address)
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("--runner ray: the package ray is not installed", hint="pip install 'transnormer[ray]'")
    _wait_for_answer(address, host, port)
    from transnormer.experiments.ray_executor import joined

    with joined(address) as executor:
        yield executor


def _parse(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not host or "/" in host or not port.isdecimal():
        raise ConfigError(
            f"--ray-address: {address} is not HOST:PORT", hint="that of the cluster's head, e.g. 10.0.0.1:6379"
        )
    return host.strip("[]"), int(port)


def _wait_for_answer(address: str, host: str, port: int) -> None:
    """Ray itself would try for many minutes; asked in a process of its own, it can be ended."""
    deadline = time.monotonic() + PATIENCE
    while (refused := _refused(host, port, deadline)) and time.monotonic() + _PAUSE < deadline:
        time.sleep(_PAUSE)
    if not refused:
        ask = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--skip-version-check"]
        try:
            done = subprocess.run([*ask, "--address", address], capture_output=True, text=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            refused = "something listens there, but it does not talk as Ray does"
        else:
            refused = done.stderr.strip().rpartition("\n")[2] if done.returncode else None
    if refused:
        raise ConfigError(
            f"no Ray cluster answers at {address} (waited {PATIENCE:g} s): {refused}",
            hint="start one: `ray start --head`, or give its address: --ray-address HOST:PORT",
        )


def _refused(host: str, port: int, deadline: float) -> str | None:
    """Why nothing listens there; None if something does."""
    try:
        socket.create_connection((host, port), timeout=max(0.1, deadline - time.monotonic())).close()
    except (OSError, OverflowError) as error:  # the latter: there is no such port
        return str(error)
    return None


@dataclass(frozen=True)
class Share:
    """What one job takes of a node, and how many jobs the cluster has room for."""

    cpus: float
    gpus: float
    threads: int
    places: int


def share_out(nodes: Sequence[Mapping[str, float]], device: str, jobs: int) -> Share:
    """So that each GPU runs so many jobs; without GPUs, so many as the smallest node runs, and larger ones more.

    `nodes` are the resources of each node that can run jobs: at least a CPU core or, on cuda, a GPU.
    """
    if device == "cuda":
        cores = min(node.get("CPU", 0.0) / node["GPU"] for node in nodes) / jobs
        places = sum(int(node["GPU"]) * jobs for node in nodes)
        return Share(0.0, _rounded_down(1 / jobs), max(1, int(cores)), places)
    share = _rounded_down(min(node["CPU"] for node in nodes) / jobs)
    return Share(share, 0.0, max(1, int(share)), sum(int(node["CPU"] / share) for node in nodes))


def _rounded_down(share: float) -> float:
    """As Ray counts: seven times a seventh must not be more than one."""
    return max(1, math.floor(share * _STEPS)) / _STEPS
