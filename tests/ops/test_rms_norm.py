"""rms_norm against its definition, in every dtype."""

from __future__ import annotations

import pytest
import torch

from transnormer.errors import ConfigError
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


def test_wrong_gain_is_an_error():
    with pytest.raises(ConfigError, match="weight must be"):
        rms_norm(torch.randn(2, 8), torch.ones(4))
