"""Both attentions, as ops and as modules, go through `torch.export` with a length that stays open."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

from transnormer.mixers.diag import DiagAttention
from transnormer.mixers.norm import NormAttention
from transnormer.ops import diag_attention, norm_attention

OPS = {
    "norm causal": partial(norm_attention, causal=True),
    "norm full": partial(norm_attention, causal=False),
    "diag causal": partial(diag_attention, causal=True),
    "diag full": partial(diag_attention, causal=False),
    "rela causal": partial(diag_attention, causal=True, kind="rela"),
}


class Attention(nn.Module):
    def __init__(self, op: Any) -> None:
        super().__init__()
        self.op = op

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.op(q, k, v)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", OPS)
def test_one_program_serves_every_length(name, grad):
    example = tuple(torch.randn(2, 200, 2, 8, dtype=torch.float64, requires_grad=grad) for _ in range(3))
    length = Dim("length", min=2, max=100_000)
    program = export(Attention(OPS[name]), example, dynamic_shapes={x: {1: length} for x in "qkv"})
    for other in (2, 63, 64, 65, 128, 2500):
        q, k, v = torch.randn(3, 2, other, 2, 8, dtype=torch.float64)
        torch.testing.assert_close(program.module()(q, k, v), OPS[name](q, k, v), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("position", ["none", "rope", "lrpe"])
@pytest.mark.parametrize("module", [NormAttention, DiagAttention])
def test_one_program_of_a_module_serves_every_length(module, position, causal):
    layer = module(16, 2, causal, position=position).double().eval()
    example = (torch.randn(2, 200, 16, dtype=torch.float64),)
    program = export(layer, example, dynamic_shapes=({1: Dim("length", min=2, max=100_000)},))
    for other in (2, 65, 500):
        x = torch.randn(2, other, 16, dtype=torch.float64)
        torch.testing.assert_close(program.module()(x), layer(x), atol=1e-9, rtol=1e-9)
        program.module()(x).sum().backward()  # it can be trained, too
