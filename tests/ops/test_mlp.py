"""The feed-forward layer against its equation: both paths, every gradient, and the kernel in Triton's interpreter."""

from __future__ import annotations

import os
from functools import partial

import pytest
import torch
from kernel_cases import check_kernel, outputs_and_gradients

from transnormer.errors import ConfigError
from transnormer.models.layers import FFN
from transnormer.ops import mlp
from transnormer.ops.activations import ACTIVATIONS
from transnormer.ops.backend import explain
from transnormer.ops.feed_forward.reference import mlp_reference

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
# The interpreter computes with numpy, which has no bfloat16: float16 stands in for it.
HALF = torch.float16 if INTERPRETED else torch.bfloat16

on_the_cpu = pytest.mark.skipif(INTERPRETED, reason="this is the process for kernels")
with_kernels = pytest.mark.gpu if not INTERPRETED else pytest.mark.usefixtures("poisoned_empty")

CASES = [  # shape of x, F, D_out
    ((20, 8), 6, 4),
    ((3, 7, 12), 33, 12),
    ((130, 16), 40, 20),  # two tiles of rows, two blocks of hidden units
]
CASES_GPU = [((1, 64), 128, 64), ((33, 50), 101, 30), ((4, 2000, 64), 128, 64), ((40_001, 64), 96, 64)]


def problem(shape: tuple[int, ...], width: int, out: int, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    """x, weight_in, bias_in, weight_out, bias_out; what is activated has a standard deviation of about 1.4."""
    generator = torch.Generator().manual_seed(width)
    size = shape[-1]
    shapes = [(shape, 1.0), ((width, size), size**-0.5), ((width,), 1.0), ((out, width), width**-0.5), ((out,), 1.0)]
    return [(torch.randn(s, generator=generator) * scale).to(device, dtype) for s, scale in shapes]


@on_the_cpu
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_equals_the_reference(activation):
    inputs = problem((2, 5, 6), 9, 4, torch.float64, "cpu")
    ours, theirs = (
        outputs_and_gradients(partial(op, activation=activation), inputs, seed=1) for op in (mlp, mlp_reference)
    )
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@on_the_cpu
def test_a_wrong_call_says_what_is_wrong():
    names = ("x", "weight_in", "bias_in", "weight_out", "bias_out")
    right = dict(zip(names, problem((3, 6), 8, 4, torch.float32, "cpu"), strict=True))
    for wrong, words in (
        ({"x": right["x"].sum()}, "got a number"),
        ({"x": right["x"][..., :5]}, r"weight_in must be \[F, 5\], got \[8, 6\]"),
        ({"bias_in": right["bias_in"][:7]}, r"bias_in must be \[8\], got \[7\]"),
        ({"weight_out": right["weight_out"].T}, r"weight_out must be \[D_out, 8\], got \[8, 4\]"),
        ({"bias_out": right["bias_in"]}, r"bias_out must be \[4\], got \[8\]"),
        ({"bias_out": right["bias_out"].double()}, "one dtype"),
        ({"activation": "gelo"}, "did you mean 'gelu'"),
    ):
        with pytest.raises(ConfigError, match=words):
            mlp(**{**right, **wrong})


@on_the_cpu
def test_explain_says_which_layers_fit_shared_memory():
    def backend(size: int, hidden: int, dtype: torch.dtype):
        return explain(
            "feed_forward",
            "cuda",
            gated=False,
            x=torch.zeros(3, size, dtype=dtype),
            weight_out=torch.zeros(size, hidden),
        )

    assert backend(64, 128, torch.bfloat16).backend == "triton"
    assert "float32" in backend(64, 128, torch.float32).reason
    assert "64 -> 129 -> 64" in backend(64, 129, torch.bfloat16).reason
    assert "65 -> 128 -> 65" in backend(65, 128, torch.bfloat16).reason


@with_kernels
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("case", CASES if INTERPRETED else CASES_GPU, ids=str)
def test_is_as_exact_as_pytorch_in_that_dtype(case, activation):
    call = partial(mlp, activation=activation)
    check_kernel(
        partial(call, backend="triton"),
        partial(call, backend="torch"),
        partial(mlp_reference, activation=activation),
        problem(*case, HALF, DEVICE),
    )


@with_kernels
@pytest.mark.parametrize("needed", range(5))
def test_only_the_gradients_that_are_needed(needed):
    inputs = problem((10, 8), 40, 6, HALF, DEVICE)
    leaves = [tensor.clone().requires_grad_(index == needed) for index, tensor in enumerate(inputs)]
    mlp(*leaves, backend="triton").sum().backward()
    assert [leaf.grad is not None for leaf in leaves] == [index == needed for index in range(5)]


@with_kernels
@pytest.mark.parametrize("rows", [(), (0,), (2, 0)])
def test_one_vector_and_no_rows(rows):
    inputs = problem((*rows, 8), 40, 6, HALF, DEVICE)
    ours, theirs = (outputs_and_gradients(partial(mlp, backend=name), inputs, seed=1) for name in ("triton", "torch"))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)


@with_kernels
def test_a_compiled_call_gives_the_same():
    inputs = problem((70, 8), 40, 6, HALF, DEVICE)
    compiled = torch.compile(partial(mlp, backend="triton"), fullgraph=True, backend="aot_eager")
    ours, theirs = (outputs_and_gradients(op, inputs, seed=1) for op in (compiled, partial(mlp, backend="triton")))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@with_kernels
def test_a_wide_layer_runs_whatever_the_backend(monkeypatch):
    monkeypatch.setattr("transnormer.models.layers.should_pack", lambda x, *layers: True)
    monkeypatch.setenv("TRANSNORMER_BACKEND", "triton")
    with torch.autocast(DEVICE, HALF):
        assert FFN(128, 256, "gelu").to(DEVICE)(torch.randn(2, 128, device=DEVICE)).shape == (2, 128)


@with_kernels
def test_a_layer_takes_it_under_autocast(monkeypatch):
    """The layer with the kernel and without, in one model: the same but for rounding, all gradients too."""
    monkeypatch.setattr("transnormer.models.layers.should_pack", lambda x, *layers: True)
    torch.manual_seed(0)
    layer, x = FFN(16, 40, "gelu").to(DEVICE), torch.randn(2, 9, 16, device=DEVICE, requires_grad=True)
    results = []
    for backend in ("triton", "torch"):
        monkeypatch.setenv("TRANSNORMER_BACKEND", backend)
        with torch.autocast(DEVICE, HALF):
            y = layer(x)
        gradients = torch.autograd.grad(y.float().square().sum(), [x, *layer.parameters()])
        assert [g.dtype for g in gradients] == [torch.float32] * 5
        results.append([y.detach().float(), *gradients])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.02 * float(theirs.abs().max()))
