"""One dtype rule for both attentions: that of a matrix product, and what is no floating-point tensor is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from transnormer.errors import ConfigError
from transnormer.ops import diag_attention, norm_attention, normed_attention

OPS = {
    "norm": norm_attention,
    "normed": normed_attention,
    "softmax": diag_attention,
    "rela": lambda *qkv, **options: diag_attention(*qkv, kind="rela", **options),
}


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("causal", [True, False])
def test_under_autocast_the_result_is_of_autocasts_dtype(name, given, causal):
    q, k, v = torch.randn(3, 1, 70, 2, 8, dtype=given)
    assert OPS[name](q, k, v, causal=causal).dtype == given
    with torch.autocast("cpu", torch.bfloat16):
        assert (q @ k.mT).dtype == OPS[name](q, k, v, causal=causal).dtype
        if given != torch.float64:  # which autocast leaves alone
            assert OPS[name](q, k.bfloat16(), v.float(), causal=causal).dtype == torch.bfloat16


@pytest.mark.parametrize("name", OPS)
def test_whole_numbers_and_arrays_are_refused(name):
    q = torch.randn(1, 5, 2, 8)
    with pytest.raises(ConfigError, match=r"k must have a floating-point dtype, got torch\.int64"):
        OPS[name](q, q.long(), q, causal=True)
    with pytest.raises(ConfigError, match="q must be a tensor, got ndarray"):
        OPS[name](np.zeros((1, 5, 2, 8)), q, q, causal=True)


@pytest.mark.parametrize("kind", ["softmax", "rela"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_diag_attention_has_second_derivatives(kind, causal, masked):
    q, k, v = (torch.randn(1, 5, 1, 3, dtype=torch.float64).requires_grad_() for _ in range(3))
    mask = torch.tensor([[1, 1, 1, 0, 1]]) if masked else None

    def op(*qkv):
        return diag_attention(*qkv, causal=causal, kind=kind, block_size=3, mask=mask)

    assert torch.autograd.gradgradcheck(op, (q, k, v))


def test_softmax_diag_attention_under_functional_transforms():
    q = torch.randn(1, 5, 1, 3, dtype=torch.float64)

    def loss(q):
        return diag_attention(q, q, q, causal=True).square().sum()

    hessian = torch.func.hessian(loss)(q)
    torch.testing.assert_close(hessian, torch.func.jacrev(torch.func.jacrev(loss))(q))
