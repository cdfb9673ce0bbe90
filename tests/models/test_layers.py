"""The gated linear unit on tensor cores is the gated linear unit."""

from __future__ import annotations

import pytest
import torch

from transnormer.models.layers import GLU


@pytest.mark.parametrize("width", [85, 88, 1])
def test_two_products_give_what_three_give(width: int) -> None:
    torch.manual_seed(0)
    glu = GLU(32, width, "silu").double()
    x = torch.randn(2, 5, 32, dtype=torch.float64, requires_grad=True)
    found = []
    for forward in (glu.forward, glu.in_two_products):
        y = forward(x)
        found.append((y, *torch.autograd.grad(y.square().sum(), [x, *glu.parameters()])))
    for ours, expected in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)
