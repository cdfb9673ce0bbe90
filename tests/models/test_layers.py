"""The gated linear unit on tensor cores is the gated linear unit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from transnormer.models.layers import GLU, Layer
from transnormer.models.presets import preset


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


class Nothing(nn.Module):
    """A dropout that leaves nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("mixer", ["norm", "diag"])
def test_dropout_is_on_what_each_sublayer_adds(mixer: str, norm_first: bool) -> None:
    config = preset("t2-tiny", hidden_size=16, num_attention_heads=2, dropout=0.3, norm_first=norm_first)
    layer = Layer(config, mixer)
    assert layer.dropout.p == 0.3
    x = torch.randn(2, 5, 16)
    layer.dropout = Nothing()
    y, _ = layer(x, None)
    expected = x if norm_first else layer.feed_forward_norm(layer.mixer_norm(x))
    torch.testing.assert_close(y, expected)


def test_dropout_is_drawn_in_training_alone() -> None:
    torch.manual_seed(0)
    layer = Layer(preset("t2-tiny", hidden_size=16, num_attention_heads=2, dropout=0.3), "norm")
    x = torch.randn(2, 5, 16)
    first, second = (layer.train()(x, None)[0] for _ in range(2))
    assert not torch.equal(first, second)
    first, second = (layer.eval()(x, None)[0] for _ in range(2))
    assert torch.equal(first, second)
