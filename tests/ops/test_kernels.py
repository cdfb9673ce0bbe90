"""Triton kernels against PyTorch in the same dtype and the definition in float64; interpreted where there is no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from kernel_cases import check_kernel

from transnormer.errors import ConfigError
from transnormer.ops import diag_attention, norm_attention, rms_norm
from transnormer.ops.diag_attention.reference import diag_attention_reference
from transnormer.ops.norm_attention.reference import norm_attention_reference
from transnormer.ops.rms_norm.reference import rms_norm_reference

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
# The interpreter computes with numpy, which has no bfloat16: float16 stands in for it.
HALF = torch.float16 if INTERPRETED else torch.bfloat16

pytest.importorskip("triton", reason="triton is not installed")
here = pytest.mark.gpu if not INTERPRETED else pytest.mark.usefixtures("poisoned_empty")


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(DEVICE, dtype) for shape in shapes]


def some_mask(batch: int, length: int) -> torch.Tensor:
    return (torch.rand(batch, length, generator=torch.Generator().manual_seed(5)) < 0.7).to(DEVICE)


NORM = [  # length, head sizes of keys and values, φ, causal, masked, carried state
    (1, 16, 16, "1+elu", True, False, True),
    (5, 16, 16, "elu", True, True, False),
    (130, 24, 16, "1+elu", True, True, True),
    (70, 16, 17, "identity", True, False, False),
    (70, 80, 16, "1+elu", True, True, True),
    (70, 16, 16, "1+elu", False, True, True),
    (130, 24, 16, "elu", False, False, False),
]
NORM_GPU = [
    (length, d, d, phi, causal, masked, masked)
    for d in (16, 32, 64, 96, 128)
    for causal in (True, False)
    for length, phi, masked in ((1, "elu", False), (257, "1+elu", True), (1000, "1+elu", False), (63, "elu", True))
]


@here
@pytest.mark.parametrize("parts", ["one part", "many parts"])
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("case", NORM if INTERPRETED else NORM_GPU, ids=str)
def test_norm_attention(case, dtype, parts, monkeypatch):
    from transnormer.ops.norm_attention import kernel

    length, d, e, feature_map, causal, masked, carried = case
    monkeypatch.setattr(kernel, "_ENOUGH", 1 if parts == "one part" else 10**9)
    q, k, v = tensors((2, length, 2, d), (2, length, 2, d), (2, length, 2, e), dtype=dtype)
    (state,) = tensors((2, 2, d, e), dtype=torch.float32, seed=1)
    options = {"causal": causal, "feature_map": feature_map, "mask": some_mask(2, length) if masked else None}

    def call(op, q, k, v, state=None):
        return op(q, k, v, state=state, **options)

    check_kernel(
        partial(call, partial(norm_attention, return_state=True, backend="triton")),
        partial(call, partial(norm_attention, return_state=True, backend="torch")),
        partial(call, norm_attention_reference),
        [q, k, v, state] if carried else [q, k, v],
    )


DIAG = [  # length, head size, block, kind, causal, masked
    (5, 16, 64, "softmax", True, True),
    (70, 24, 16, "rela", True, False),
    (129, 16, 64, "softmax", True, False),
    (70, 16, 64, "softmax", False, True),
    (70, 16, 24, "rela", False, True),
]
DIAG_GPU = [
    (length, d, block, kind, causal, masked)
    for d in (16, 32, 64, 96, 128)
    for kind in ("softmax", "rela")
    for causal in (True, False)
    for length, block, masked in (
        (1, 64, False),
        (257, 16, True),
        (1000, 64, False),
        (1000, 64, True),
        (300, 128, True),
    )
]


@here
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("case", DIAG if INTERPRETED else DIAG_GPU, ids=str)
def test_diag_attention(case, dtype):
    length, d, block_size, kind, causal, masked = case
    options = {"causal": causal, "block_size": block_size, "kind": kind}
    options["mask"] = some_mask(2, length) if masked else None
    check_kernel(
        partial(diag_attention, backend="triton", **options),
        partial(diag_attention, backend="torch", **options),
        partial(diag_attention_reference, **options),
        tensors(*[(2, length, 2, d)] * 3, dtype=dtype),
    )


@here
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("shape", [(3, 5), (2, 9, 64), (70, 100), (1, 4, 2, 512)])
@pytest.mark.parametrize("gain", [True, False])
def test_rms_norm(shape, gain, dtype):
    inputs = tensors(shape, *([shape[-1:]] if gain else []), dtype=dtype)
    check_kernel(partial(rms_norm, backend="triton"), partial(rms_norm, backend="torch"), rms_norm_reference, inputs)


@here
def test_strided_views_need_no_copies():
    """q, k and v as views of one joined projection, and heads before time, give what contiguous tensors give."""
    (joined,) = tensors((2, 70, 3, 2, 16), dtype=torch.float32)
    views = joined.unbind(2)
    copies = [x.contiguous() for x in views]
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in views]
    for op in (partial(norm_attention, causal=True), partial(diag_attention, causal=True)):
        expected = op(*copies, backend="triton")
        assert torch.equal(op(*views, backend="triton"), expected)
        assert torch.equal(op(*turned, backend="triton"), expected)


@here
def test_the_same_inputs_give_the_same_bits():
    q, k, v = tensors(*[(2, 200, 2, 32)] * 3, dtype=HALF)
    for op in (partial(norm_attention, causal=True), partial(diag_attention, causal=True, kind="rela")):
        runs = []
        for _ in range(2):
            inputs = [x.clone().requires_grad_() for x in (q, k, v)]
            op(*inputs, backend="triton").float().tanh().sum().backward()
            runs.append([x.grad for x in inputs])
        assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@here
def test_what_a_kernel_cannot_serve_is_an_error_with_the_reason():
    q, k, v = tensors(*[(1, 8, 1, 16)] * 3, dtype=torch.float32)
    with pytest.raises(ConfigError, match="float64"):
        norm_attention(q.double(), k.double(), v.double(), causal=True, backend="triton")
    with pytest.raises(ConfigError, match="head size 512"):
        diag_attention(*tensors(*[(1, 8, 1, 512)] * 3, dtype=torch.float32), causal=True, backend="triton")
    with pytest.raises(ConfigError, match="block_size 256"):
        diag_attention(q, k, v, causal=True, block_size=256, backend="triton")
    with pytest.raises(ConfigError, match="dropout"):
        diag_attention(q, k, v, causal=True, dropout_p=0.1, backend="triton")


@pytest.mark.skipif(INTERPRETED, reason="this is the process inside")
def test_kernels_in_the_interpreter():
    """Triton decides at import whether it interprets, so the CPU runs the tests above in a process of their own."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", __file__]
    done = subprocess.run(command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
