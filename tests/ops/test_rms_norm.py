"""rms_norm against its definition, in every dtype."""

from __future__ import annotations

import pytest
import torch

from transnormer.errors import ConfigError
from transnormer.models.layers import SimpleRMSNorm
from transnormer.ops import rms_norm
from transnormer.ops.rms_norm.reference import rms_norm_reference


@pytest.mark.parametrize("gain", [True, False])
def test_equals_the_reference_with_its_gradients(gain):
    x = torch.randn(3, 5, 7, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(7, dtype=torch.float64, requires_grad=True) if gain else None
    torch.testing.assert_close(rms_norm(x, weight), rms_norm_reference(x, weight), atol=1e-12, rtol=1e-12)
    assert torch.autograd.gradcheck(rms_norm, (x, weight) if gain else (x,))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype):
    x = (torch.randn(64, 512) * 300).to(dtype)
    exact = rms_norm_reference(x.double())
    assert rms_norm(x).dtype == dtype
    assert (rms_norm(x).double() - exact).abs().max() <= (exact.to(dtype).double() - exact).abs().max() * 1.01


def test_a_row_of_zeros_stays_finite():
    x = torch.zeros(2, 8, requires_grad=True)
    rms_norm(x).sum().backward()
    assert rms_norm(x).eq(0).all()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_compiled_norm_is_the_same_function(dtype):
    """Its backward is written by hand, from the result instead of the input."""
    x = torch.randn(6, 40, dtype=dtype, requires_grad=True)
    x.data[0] = 0  # eps counts
    upstream = torch.randn(6, 40, dtype=dtype)
    compiled = torch.compile(lambda x: rms_norm(x, eps=1e-3), backend="aot_eager", fullgraph=True)
    (expected,) = torch.autograd.grad(rms_norm(x, eps=1e-3), x, upstream)
    (found,) = torch.autograd.grad(compiled(x), x, upstream)
    torch.testing.assert_close(compiled(x), rms_norm(x, eps=1e-3))
    torch.testing.assert_close(found, expected)


def test_in_front_of_a_product_nothing_wide_is_kept():
    """A compiled norm and projection under autocast keep the rounded rows, not the float32 ones they came from."""
    kept = []

    def keep(x):
        kept.append(x)
        return x

    norm, projection = SimpleRMSNorm(before_product=True), torch.nn.Linear(32, 32)

    @torch.compile(fullgraph=True, backend="inductor")
    def layer(x):
        return projection(norm(x))

    x = torch.randn(64, 32, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16), torch.autograd.graph.saved_tensors_hooks(keep, keep):
        y = layer(x * 1)
    shapes = {(tuple(tensor.shape), tensor.dtype) for tensor in kept}
    assert ((64, 32), torch.bfloat16) in shapes
    assert ((64, 32), torch.float32) not in shapes
    (found,) = torch.autograd.grad(y.float().square().sum(), x)
    (expected,) = torch.autograd.grad(projection(rms_norm(x)).square().sum(), x)
    assert (found - expected).norm() < 0.02 * expected.norm()


def test_wrong_gain_is_an_error():
    with pytest.raises(ConfigError, match="weight must be"):
        rms_norm(torch.randn(2, 8), torch.ones(4))
    for nothing in (torch.zeros(2, 0), torch.tensor(1.0)):
        with pytest.raises(ConfigError, match="at least one column"):
            rms_norm(nothing)


def test_a_backend_that_is_asked_for_is_not_swapped_when_compiled(monkeypatch):
    monkeypatch.setenv("TRANSNORMER_BACKEND", "triton")
    compiled = torch.compile(lambda x: rms_norm(x), backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="backend 'triton' cannot run"):
        compiled(torch.randn(3, 8))
