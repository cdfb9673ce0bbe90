"""Kernels are launched on the device of their tensors, whichever device is the current one."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

import transnormer as tn
from transnormer.generate import decoder
from transnormer.ops.backend import explain
from transnormer.ops.kernels import launch
from transnormer.ops.kernels.launch import kernel_op

pytest.importorskip("triton", reason="triton is not installed")


@pytest.fixture
def entered(monkeypatch) -> list[object]:
    """What the guards of devices were given, in order, and None where one was left."""
    seen: list[object] = []

    @contextmanager
    def guard(what: object):
        seen.append(what)
        yield
        seen.append(None)

    monkeypatch.setattr(torch.cuda, "device_of", guard)
    monkeypatch.setattr(torch.cuda, "device", guard)
    return seen


def test_an_op_runs_on_the_device_of_its_first_tensor(entered):
    inside = []

    @kernel_op("transnormer_tests::add")
    def add(x: Tensor, y: Tensor | None, by: float) -> Tensor:
        inside.append(len(entered))
        return x + by if y is None else x + y + by

    x = torch.arange(3.0)
    assert torch.equal(add(x, None, 1.0), x + 1)
    assert torch.equal(add(x, x, by=1.0), x + x + 1)
    assert inside == [1, 3], "the body did not run inside of the guard"
    assert [seen is None or torch.equal(seen, x) for seen in entered] == [True] * 4


def test_every_op_that_launches_a_kernel_is_guarded():
    sources = {path: path.read_text() for path in Path(tn.ops.__file__).parent.rglob("*.py")}
    unguarded = [str(path) for path, source in sources.items() if "@torch.library.custom_op" in source]
    assert not unguarded, "use transnormer.ops.kernels.launch.kernel_op"


def test_gpus_without_tensor_cores_are_left_to_pytorch(monkeypatch):
    q = torch.empty((1, 64, 1, 16), dtype=torch.float16, device="meta")
    assert explain("norm_attention", "cuda", q=q, k=q, v=q).backend == "triton"
    monkeypatch.setattr(launch, "capability", lambda device: 75)
    for op in ("norm_attention", "diag_attention", "rotated_attention", "rotate"):
        choice = explain(op, "cuda", q=q, k=q, v=q)
        assert (choice.backend, "capability 7.5" in choice.reason) == ("torch", True)


def test_a_decoder_is_recorded_on_the_device_of_its_model(entered, monkeypatch):
    monkeypatch.setattr(decoder, "capture", lambda step: entered.append("captured"))
    made = decoder.Decoder(tn.TransNormerForCausalLM(tn.preset("t2-tiny")), compiled=False)
    made.record()
    assert entered == [made.token.device, "captured", None]
