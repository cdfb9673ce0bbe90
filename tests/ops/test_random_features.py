"""Random features against their definition: both paths, the gradient, and the kernel in Triton's interpreter."""

from __future__ import annotations

import os
from functools import partial
from itertools import product

import pytest
import torch
from kernel_cases import check_kernel, outputs_and_gradients

from transnormer.errors import ConfigError
from transnormer.ops import random_features
from transnormer.ops.backend import explain
from transnormer.ops.random_features import SCOPES
from transnormer.ops.random_features.reference import random_features_reference

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
# The interpreter computes with numpy, which has no bfloat16: float16 stands in for it.
HALF = torch.float16 if INTERPRETED else torch.bfloat16

on_the_cpu = pytest.mark.skipif(INTERPRETED, reason="this is the process for kernels")
with_kernels = pytest.mark.gpu if not INTERPRETED else pytest.mark.usefixtures("poisoned_empty")

CASES = [  # shape of x, number of features
    ((2, 5, 2, 8), 12),
    ((1, 1, 1, 16), 16),
    ((2, 70, 1, 20), 40),  # two programs, the second nearly empty
]
CASES_GPU = [((3, 1, 2, 16), 16), ((2, 129, 2, 32), 128), ((1, 300, 3, 48), 100), ((2, 64, 2, 128), 256)]


def problem(shape: tuple[int, ...], features: int, device: str, masked: bool, shifted: bool, size: float = 1.0):
    """x in float32, and the other arguments; the second sequence has no token when masked."""
    generator = torch.Generator().manual_seed(features)
    x = torch.randn(shape, generator=generator) * size
    weight = torch.randn(features, shape[-1], generator=generator)
    options = {"offset": torch.randn(features, generator=generator).to(device) if shifted else None, "mask": None}
    if masked:
        options["mask"] = (torch.rand(shape[:2], generator=generator) < 0.7).to(device)
        options["mask"][1:2] = False
    return x.to(device), weight.to(device), options | {"scale": shape[-1] ** -0.25, "epsilon": 1e-4}


def on_a_cpu(x, weight, **options):
    """The definition, wherever the inputs are."""
    moved = {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in options.items()}
    if moved["offset"] is not None:
        moved["offset"] = moved["offset"].double()
    return random_features_reference(x.cpu(), weight.cpu().double(), **moved).to(x.device)


@on_the_cpu
@pytest.mark.parametrize(("scope", "masked", "shifted"), product(SCOPES, (False, True), (False, True)))
def test_equals_the_reference(scope, masked, shifted):
    x, weight, options = problem((3, 7, 2, 4), 6, "cpu", masked, shifted)
    ours, theirs = (
        outputs_and_gradients(partial(op, weight=weight.double(), scope=scope, **options), [x.double()], seed=1)
        for op in (random_features, on_a_cpu)
    )
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@on_the_cpu
@pytest.mark.parametrize("scope", ["token", "sequence", "batch"])
def test_large_tokens_do_not_overflow_and_padded_ones_do_not_count(scope):
    x, weight, options = problem((3, 9, 2, 8), 6, "cpu", masked=True, shifted=False, size=30.0)
    with torch.no_grad():
        x[~options["mask"]] = torch.inf
    y = random_features(x.requires_grad_(), weight, scope=scope, **options)
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()
    assert (y[~options["mask"]] == 0).all()
    assert (x.grad[~options["mask"]] == 0).all()


@pytest.mark.parametrize("scope", SCOPES)
def test_a_batch_without_texts_gives_one_back(scope):
    x = torch.zeros(0, 5, 2, 8, requires_grad=True)
    y = random_features(x, torch.ones(12, 8), scale=1.0, epsilon=1e-4, scope=scope)
    assert y.shape == (0, 5, 2, 12)
    y.sum().backward()
    assert x.grad.shape == x.shape


@on_the_cpu
def test_under_autocast_exponents_stay_in_float32():
    x, weight, options = problem((2, 20, 2, 32), 64, "cpu", masked=False, shifted=False, size=2.0)
    exact = random_features(x.bfloat16().double(), weight.double(), scope="token", **options)
    with torch.autocast("cpu", torch.bfloat16):
        ours = random_features(x.bfloat16(), weight, scope="token", **options)
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours.double(), exact, rtol=2**-8, atol=1e-7)  # one rounding


@on_the_cpu
def test_a_wrong_call_says_what_is_wrong():
    x, weight, options = problem((2, 5, 2, 8), 12, "cpu", masked=True, shifted=True)
    for wrong, words in (
        ({"x": x[0]}, r"x must be \[B, T, H, D\]"),
        ({"x": x[:, :0]}, "T ≥ 1"),
        ({"weight": weight[:, :7]}, r"weight must be \[M, 8\], got \[12, 7\]"),
        ({"offset": options["offset"][:3]}, r"offset must be \[12\], got \[3\]"),
        ({"mask": options["mask"].T}, r"mask must be \[B, T\] = \[2, 5\], got \[5, 2\]"),
        ({"scope": "sequense"}, "did you mean 'sequence'"),
    ):
        with pytest.raises(ConfigError, match=words):
            random_features(**{"x": x, "weight": weight, "scope": "sequence", **options, **wrong})


@on_the_cpu
def test_explain_says_what_the_kernel_does_not_take():
    x, weight, _ = problem((2, 5, 2, 8), 12, "cpu", masked=False, shifted=False)
    assert "dtype float32" in explain("random_features", "cuda", x=x, weight=weight).reason
    assert "300 features" in explain("random_features", "cuda", x=x.half(), weight=weight.new_zeros(300, 8)).reason
    assert explain("random_features", "cuda", x=x.half(), weight=weight).backend == "triton"
    with pytest.raises(ConfigError, match="TRITON_INTERPRET"):
        random_features(x, weight, scale=1.0, epsilon=1e-4, scope="token", backend="triton")


@with_kernels
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize(("shape", "features"), CASES if INTERPRETED else CASES_GPU)
def test_the_kernel(shape, features, scope):
    for masked, shifted in ((False, False), (True, True)):
        x, weight, options = problem(shape, features, DEVICE, masked, shifted)
        ours, plain = (partial(random_features, backend=backend) for backend in ("triton", "torch"))
        check_kernel(
            *(partial(op, weight=weight, scope=scope, **options) for op in (ours, plain, on_a_cpu)), [x.to(HALF)]
        )


@with_kernels
def test_the_kernel_takes_heads_that_lie_apart_and_says_the_same_twice():
    x, weight, options = problem((2, 33, 6, 16), 24, DEVICE, masked=True, shifted=False)
    together = x.to(HALF)
    features = partial(random_features, weight=weight, scope="sequence", backend="triton", **options)
    apart = features(together.unflatten(2, (3, 2))[:, :, 1])
    assert torch.equal(apart, features(together[:, :, 2:4].contiguous()))
    assert torch.equal(apart, features(together[:, :, 2:4]))


@with_kernels
@pytest.mark.parametrize("scope", ["token", "sequence", "batch"])
def test_the_kernel_does_not_overflow(scope):
    x, weight, options = problem((3, 9, 2, 16), 24, DEVICE, masked=True, shifted=False, size=30.0)
    with torch.no_grad():
        x[~options["mask"]] = 3e4
    x = x.to(HALF).requires_grad_()
    y = random_features(x, weight, scope=scope, backend="triton", **options)
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()
    assert (x.grad[~options["mask"]] == 0).all()


@with_kernels
@pytest.mark.parametrize("scope", SCOPES)
def test_a_number_that_is_none_stays_none(scope):
    x, weight, options = problem((2, 5, 2, 16), 20, DEVICE, masked=False, shifted=False)
    x[1] = torch.nan
    x = x.to(HALF).requires_grad_()
    y = random_features(x, weight, scope=scope, backend="triton", **options)
    y.sum().backward()
    assert y[1].isnan().all()
    assert x.grad[1].isnan().any()
    assert scope == "batch" or x.grad[0].isfinite().all()


@with_kernels
def test_the_op_is_registered_as_a_compiler_needs_it():
    x, weight, options = problem((2, 5, 2, 16), 20, DEVICE, masked=True, shifted=False)
    from transnormer.ops.random_features import kernel

    x, parts = x.to(HALF), kernel._parts(weight, HALF)
    tensors = (x.clone().requires_grad_(), *parts, None, None, None, options["mask"].to(torch.int16))
    torch.library.opcheck(kernel._op, (*tensors, 0.5, 1e-4, 0))
    torch.library.opcheck(kernel._largest_op, (x, *parts, None, None, 0.5))
    largest, where = kernel._largest_op(x, *parts, None, None, 0.5)
    for scope in (kernel._SEQUENCE, kernel._BATCH):
        tensors = (x.clone().requires_grad_(), *parts, None, largest, where, None)
        torch.library.opcheck(kernel._op, (*tensors, 0.5, 1e-4, scope))


@with_kernels
@pytest.mark.parametrize("scope", SCOPES)
def test_a_compiled_call_gives_the_same(scope):
    x, weight, options = problem((2, 20, 2, 16), 24, DEVICE, masked=True, shifted=True)
    call = partial(random_features, weight=weight, scope=scope, backend="triton", **options)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    ours, theirs = (outputs_and_gradients(op, [x.to(HALF)], seed=1) for op in (compiled, call))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@with_kernels
def test_the_strides_of_the_weight_do_not_matter():
    x, weight, options = problem((2, 20, 2, 16), 24, DEVICE, masked=False, shifted=False)
    call = partial(random_features, x.to(HALF), scope="token", backend="triton", **options)
    assert torch.equal(call(weight), call(weight.mT.contiguous().mT))
