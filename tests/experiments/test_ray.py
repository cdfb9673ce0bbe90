"""Grids on a real Ray cluster: two nodes on this machine, of which tests may kill one.

Jobs are real processes from fresh interpreters, so these tests take minutes; `make cluster-test` runs them.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from reproduce_case import TINY, wait_until
from tiny_run import journal_lines, losses

from transnormer.experiments import ray_cluster

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
LONG = ("train.steps=3000", "train.eval_every=1500", "train.save_every=100", "train.threads=1")
NAMES = ("text-t2-42", "text-vanilla-42")


@dataclass
class Grid:
    """A table whose jobs run somewhere, by a command in a process of its own."""

    folder: Path
    data: Path

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def start(self, *more: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """Paths are relative to the folder of the command, as a user types them."""
        self.folder.mkdir(exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "transnormer",
            "reproduce",
            "lra",
            "--methods",
            "t2,vanilla",
            "--tasks",
            "text",
        ]
        command += ["--runs", "runs", "--results", "results", "--data", str(self.data), *TINY, *more]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *more: str, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
        process = self.start(*more, environment=environment)
        out, err = process.communicate(timeout=600)
        return process.returncode, out, err

    def record(self, name: str) -> dict[str, Any]:
        return json.loads((self.folder / "results" / f"{name}.json").read_text())

    def steps_of(self, name: str) -> int:
        """How many lines its journal has."""
        path = self.runs / name / "journal.jsonl"
        return path.read_bytes().count(b"\n") if path.is_file() else 0

    def nodes_of(self, name: str) -> list[str]:
        """Where it ran, as its log has it."""
        log = self.runs / f"{name}.log"
        return [line.split()[-1] for line in log.read_text().splitlines() if "Ray node" in line]


class TwoNodes:
    """A head and another node, a core each by default; the driver is on the head, the other can be killed."""

    def __init__(self, head_cores: int = 1, **other: Any) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": head_cores, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._other = self._cluster.add_node(**{"num_cpus": 1, **other})
        self.address = self._cluster.address
        self.options = ("--runner", "ray", "--ray-address", self.address)

    @property
    def identities(self) -> list[str]:
        return [self._cluster.head_node.node_id, self._other.node_id]

    def kill_other(self) -> None:
        """As if its machine had lost power: the raylet, its workers and the processes of their jobs, at once."""
        raylet = psutil.Process(self._other.all_processes["raylet"][0].process.pid)
        processes = [*raylet.children(recursive=True), raylet]
        for process in processes:
            process.suspend()  # so that none of them sees another one end
        for process in processes:
            process.kill()

    def kill_raylets(self) -> None:
        """Both nodes are lost; what knows of them is left."""
        for node in (self._cluster.head_node, self._other):
            os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)

    def shutdown(self) -> None:
        self._cluster.shutdown()


@pytest.fixture
def start_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., TwoNodes]]:
    """Clusters whose nodes have this checkout."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    started: list[TwoNodes] = []

    def start(**other: Any) -> TwoNodes:
        started.append(TwoNodes(**other))
        return started[-1]

    yield start
    for each in started:
        each.shutdown()


@pytest.fixture
def grid(tmp_path: Path, stores: Path) -> Grid:
    return Grid(tmp_path / "grid", stores)


def undisturbed(grid: Grid, *more: str) -> Grid:
    """The same table, made on this machine."""
    local = Grid(grid.folder.with_name("local"), grid.data)
    code, _, err = local.run("--jobs", "2", *more)
    assert code == 0, err
    return local


def assert_same(grid: Grid, local: Grid) -> None:
    """Scores bit for bit, and all that says what a job is; no more than hardware and time may differ."""
    for name in NAMES:
        ours, theirs = grid.record(name), local.record(name)
        for key in ("test", "valid", "config_hash", "config", "data", "changes", "parameters", "steps"):
            assert ours[key] == theirs[key], (name, key)
        assert losses(grid.runs / name) == losses(local.runs / name)


def test_a_grid_on_two_nodes_has_the_records_of_one_machine(grid: Grid, start_cluster: Callable[..., TwoNodes]) -> None:
    cluster = start_cluster()
    code, out, err = grid.run(*cluster.options, "train.threads=1")
    assert code == 0, err + out
    assert "jobs: 0 of 2 finished, 2 to run, 2 at once" in out
    assert {node for name in NAMES for node in grid.nodes_of(name)} == set(cluster.identities)
    assert_same(grid, undisturbed(grid, "train.threads=1"))
    assert not list(grid.runs.glob(".ray-*"))
    code, out, err = grid.run("--runner", "ray", "train.threads=1", environment={"RAY_ADDRESS": cluster.address})
    assert code == 0, err
    assert "jobs: 2 of 2 finished, 0 to run" in out


def test_the_jobs_of_a_killed_node_go_on_elsewhere(grid: Grid, start_cluster: Callable[..., TwoNodes]) -> None:
    cluster = start_cluster()
    process = grid.start(*cluster.options, *LONG)
    wait_until(lambda: min(map(grid.steps_of, NAMES)) > 150 or process.poll() is not None)
    cluster.kill_other()
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err + out
    (lost,) = [name for name in NAMES if grid.nodes_of(name)[0] == cluster.identities[1]]
    assert grid.nodes_of(lost) == cluster.identities[::-1], "then on the head"
    (resumed,) = journal_lines(grid.runs / lost, "resumed")
    assert resumed["step"] >= 100
    for name in NAMES:
        assert [step for step, _ in losses(grid.runs / name)] == list(range(1, 3001)), "each step once"
    assert_same(grid, undisturbed(grid, *LONG))


def test_a_signal_saves_all(grid: Grid, start_cluster: Callable[..., TwoNodes]) -> None:
    cluster = start_cluster()
    process = grid.start(*cluster.options, *LONG)
    wait_until(lambda: min(map(grid.steps_of, NAMES)) > 150 or process.poll() is not None)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 75, err + out
    assert "stopped with 2 of 2 jobs left" in err
    for name in NAMES:
        step = losses(grid.runs / name)[-1][0]
        assert f"{name}: stopped, saved after step {step:,}" in out
        assert (grid.runs / name / "checkpoints" / f"step-{step:08d}").is_dir()
        assert step % 100 or step == 3000, "saved because it was told to"


def test_jobs_that_wait_for_a_place_are_stopped_too(grid: Grid, start_cluster: Callable[..., TwoNodes]) -> None:
    """The only node that runs jobs is gone: nobody is there whom a signal could reach."""
    cluster = start_cluster(head_cores=0)
    process = grid.start(*cluster.options, *LONG, "--jobs", "2")
    wait_until(lambda: min(map(grid.steps_of, NAMES)) > 150 or process.poll() is not None)
    cluster.kill_other()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 75, err + out
    for name in NAMES:
        assert f"{name}: stopped, saved after step" in out


def test_jobs_end_with_a_killed_runner_and_are_taken_up_again(
    grid: Grid, start_cluster: Callable[..., TwoNodes]
) -> None:
    cluster = start_cluster()
    process = grid.start(*cluster.options, *LONG)
    wait_until(lambda: min(map(grid.steps_of, NAMES)) > 150 or process.poll() is not None)
    process.kill()
    process.communicate()
    code, out, err = grid.run(*cluster.options, *LONG)
    assert code == 0, err + out
    for name in NAMES:
        assert f"{name}: resumed" in out
        (resumed,) = journal_lines(grid.runs / name, "resumed")
        assert resumed["step"] >= 100
        assert [step for step, _ in losses(grid.runs / name)] == list(range(1, 3001))


def test_two_jobs_share_a_gpu(grid: Grid, start_cluster: Callable[..., TwoNodes]) -> None:
    """One that exists for Ray alone: the jobs are placed by it and then find none."""
    cluster = start_cluster(num_gpus=1)
    code, out, err = grid.run(*cluster.options, "train.device=auto")
    assert code == 0, err + out
    assert "2 to run, 2 at once" in out
    assert [grid.nodes_of(name) for name in NAMES] == [[cluster.identities[1]]] * 2
    assert grid.record(NAMES[0])["jobs_at_once"] == 2


def test_a_node_with_another_program_is_refused(
    grid: Grid, start_cluster: Callable[..., TwoNodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANSNORMER_COMMIT", "another")
    cluster = start_cluster()
    code, _, err = grid.run(*cluster.options, environment={"TRANSNORMER_COMMIT": "this"})
    assert code == 2
    assert "(another), this machine" in err
    assert "install the same version on every node" in err
    assert not list(grid.runs.glob("text-*"))


def test_what_is_not_a_cluster_is_named(grid: Grid) -> None:
    """Ray would try for many minutes to join it."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        code, _, err = grid.run("--runner", "ray", "--ray-address", address)
    assert code == 2, err
    assert f"no Ray cluster answers at {address} (waited {ray_cluster.PATIENCE:g} s): something listens there" in err
    assert "ray start --head" in err


def test_a_machine_that_is_no_node_is_told_to_become_one(grid: Grid, start_cluster: Callable[..., TwoNodes]) -> None:
    """The head answers, and nothing of the cluster is left here that a driver could join."""
    cluster = start_cluster()
    cluster.kill_raylets()
    code, _, err = grid.run(*cluster.options)
    assert code == 2
    assert f"cannot join the Ray cluster at {cluster.address}" in err
    assert f"ray start --address={cluster.address}" in err
