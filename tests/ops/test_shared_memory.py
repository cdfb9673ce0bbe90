"""Kernels on GPUs with less shared memory than an H100: found out by compiling for them, where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from transnormer.ops.backend import explain

pytest.importorskip("triton", reason="triton is not installed")
from triton.runtime.errors import OutOfResources

from transnormer.ops.diag_attention import kernel as diag
from transnormer.ops.kernels import shared_memory


class Kernel:
    """One that takes 40,000 bytes a stage, launched on a device that has so many."""

    def __init__(self, has: int) -> None:
        self.has, self.tried = has, []

    def __getitem__(self, grid):
        def run(*arguments, num_stages, **options):
            self.tried.append(num_stages)
            if num_stages * 40_000 > self.has:
                raise OutOfResources(num_stages * 40_000, self.has, "shared memory")

        return run


def test_a_launch_takes_as_many_stages_as_fit_and_remembers():
    kernel, x = Kernel(has=100_000), torch.zeros(2)
    for _ in range(2):
        shared_memory.launch(kernel, (1,))(x, num_stages=3, D=64)
    assert kernel.tried == [3, 2, 2]
    shared_memory.launch(kernel, (1,))(x.half(), num_stages=3, D=64)
    shared_memory.launch(kernel, (1,))(x, num_stages=3, D=32)
    assert kernel.tried[3:] == [3, 2, 3, 2], "kernels that are compiled otherwise may fit"
    with pytest.raises(OutOfResources):
        shared_memory.launch(Kernel(has=30_000), (1,))(x, num_stages=3)


@pytest.mark.parametrize(("memory", "backend"), [(shared_memory.MOST, "triton"), (101_376, "torch")])
def test_what_does_not_fit_at_all_is_left_to_pytorch(memory, backend, monkeypatch):
    monkeypatch.setattr(shared_memory, "MOST", memory)
    q = torch.empty((1, 256, 1, 128), dtype=torch.bfloat16, device="meta")
    weight = torch.empty((256, 128), device="meta")
    for choice in (
        explain("diag_attention", "cuda", q=q, k=q, v=q, block_size=128),
        explain("random_features", "cuda", x=q, weight=weight),
    ):
        assert choice.backend == backend
        assert ("does not fit shared memory" in choice.reason) == (backend == "torch")
    assert explain("diag_attention", "cuda", q=q, k=q, v=q, block_size=64).backend == "triton"


def test_a_mask_takes_more_on_gpus_before_hopper(monkeypatch):
    monkeypatch.setattr(shared_memory, "MOST", 101_376)
    q, mask = torch.empty((1, 256, 1, 128), dtype=torch.bfloat16, device="meta"), torch.ones(1, 256, device="meta")
    masked = partial(explain, "diag_attention", "cuda", q=q, k=q, v=q, block_size=64, mask=mask)
    assert "heads of 128 and 128, with a mask, does not fit shared memory" in masked().reason
    assert explain("diag_attention", "cuda", q=q, k=q, v=q, block_size=64).backend == "triton"
    monkeypatch.setattr(diag, "capability", lambda device: 90)
    assert masked().backend == "triton"


@pytest.mark.slow
@pytest.mark.parametrize(("capability", "memory"), [(80, 166_912), (89, 101_376)])
def test_every_kernel_fits_smaller_gpus(capability, memory, tmp_path):
    """An A100, and what a GeForce, an L4 or an L40S have."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    script = Path(__file__).with_name("compile_for_hopper.py")
    command = [sys.executable, str(script), str(capability), str(memory)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-3000:]
    assert "causal_backward" in done.stdout
