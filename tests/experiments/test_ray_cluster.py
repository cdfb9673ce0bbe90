"""What needs no Ray: addresses that are wrong or dead, and how nodes are shared out; test_ray.py has the clusters."""

from __future__ import annotations

import importlib.util
import socket

import pytest
from reproduce_case import ReproduceCase

from transnormer.experiments import ray_cluster
from transnormer.experiments.ray_cluster import Share, share_out


@pytest.fixture
def with_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the package were installed; nothing of it is used before a cluster answers."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name == "ray" else find(name))


@pytest.mark.usefixtures("with_ray")
def test_a_dead_address_is_named_after_a_stated_wait(case: ReproduceCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "PATIENCE", 0.7)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    assert case.run("--runner", "ray", "--ray-address", address) == 2
    assert f"error: no Ray cluster answers at {address} (waited 0.7 s): " in case.err
    assert "refused" in case.err
    assert "ray start --head" in case.err
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:99999")
    assert case.run("--runner", "ray") == 2
    assert "no Ray cluster answers at 127.0.0.1:99999 (waited 0.7 s): " in case.err
    assert not case.runs.exists()
    assert not case.results.exists()


@pytest.mark.usefixtures("with_ray")
@pytest.mark.parametrize("address", ["head", "ray://head:10001", ":6379", "head:port", "auto"])
def test_an_address_that_is_none(address: str, case: ReproduceCase) -> None:
    assert case.run("--runner", "ray", "--ray-address", address) == 2
    assert f"--ray-address: {address} is not HOST:PORT" in case.err


def test_what_is_missing_is_said(case: ReproduceCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert case.run("--runner", "ray") == 2
    assert "which cluster is not said" in case.err
    assert "`ray start --head` starts a cluster" in case.err
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert case.run("--runner", "ray", "--ray-address", "127.0.0.1:1") == 2
    assert "the package ray is not installed" in case.err
    assert "pip install 'transnormer[ray]'" in case.err


@pytest.mark.parametrize(
    ("nodes", "device", "jobs", "share"),
    [
        ([{"CPU": 8.0}], "cpu", 1, Share(8.0, 0.0, 8, 1)),
        ([{"CPU": 8.0}, {"CPU": 8.0}], "cpu", 4, Share(2.0, 0.0, 2, 8)),
        ([{"CPU": 4.0}, {"CPU": 16.0}], "cpu", 2, Share(2.0, 0.0, 2, 10)),
        ([{"CPU": 2.0}], "cpu", 3, Share(0.6666, 0.0, 1, 3)),
        ([{"CPU": 64.0, "GPU": 8.0}], "cuda", 1, Share(0.0, 1.0, 8, 8)),
        ([{"CPU": 64.0, "GPU": 8.0}, {"CPU": 4.0, "GPU": 1.0}], "cuda", 2, Share(0.0, 0.5, 2, 18)),
        ([{"CPU": 1.0, "GPU": 1.0}], "cuda", 7, Share(0.0, 0.1428, 1, 7)),
    ],
)
def test_nodes_are_shared_out(nodes: list[dict[str, float]], device: str, jobs: int, share: Share) -> None:
    """Seven sevenths are no more than one, as Ray adds them up."""
    assert share_out(nodes, device, jobs) == share
    assert share.gpus * jobs <= 1
