"""The normalised form: NormAttention and its norm in one call, and as layers for models of one's own."""

from __future__ import annotations

import pytest
import torch

import transnormer as tn
from transnormer.ops import norm_attention, normed_attention, rms_norm


@pytest.mark.parametrize("causal", [True, False])
def test_it_is_the_attention_and_then_the_norm(causal):
    q, k, v = torch.randn(3, 2, 70, 2, 8, dtype=torch.float64)
    weight = torch.rand(16, dtype=torch.float64)
    out, state = norm_attention(q, k, v, causal=causal, return_state=True)
    normed, new_state = normed_attention(q, k, v, causal=causal, weight=weight, return_state=True)
    torch.testing.assert_close(normed.flatten(-2), rms_norm(out.flatten(-2), weight))
    assert torch.equal(state, new_state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_its_size_does_not_grow_with_the_sequence(dtype):
    q, k, v = (torch.randn(3, 1, 4096, 2, 16) + 2).to(dtype)
    unnormalised, normed = norm_attention(q, k, v, causal=True), normed_attention(q, k, v, causal=True)
    assert unnormalised[:, -1].square().mean().sqrt() > 1e5
    assert normed.dtype == dtype
    torch.testing.assert_close(normed.float().square().mean(dim=(-2, -1)), torch.ones(1, 4096), atol=2e-2, rtol=0)


def test_a_packed_row_with_states():
    q, k, v = torch.randn(3, 1, 50, 2, 8)
    cu_seqlens = torch.tensor([0, 20, 50])
    packed, state = normed_attention(q, k, v, causal=True, cu_seqlens=cu_seqlens, return_state=True)
    second, last = normed_attention(*(x[:, 20:] for x in (q, k, v)), causal=True, return_state=True)
    torch.testing.assert_close(packed[:, 20:], second)
    torch.testing.assert_close(state[1:], last)


@pytest.mark.parametrize("name", ["norm", "diag"])
@pytest.mark.parametrize("causal", [True, False])
def test_layers_are_the_mixers(name, causal):
    cls = {"norm": tn.NormAttention, "diag": tn.DiagAttention}[name]
    torch.manual_seed(0)
    layer = cls(hidden_size=32, num_heads=4, causal=causal, position="lrpe")
    torch.manual_seed(0)
    mixer = tn.build_mixer(name, hidden_size=32, num_heads=4, causal=causal, max_length=99, position="lrpe")
    x = torch.randn(2, 200, 32)
    mask = torch.ones(2, 200, dtype=torch.bool)
    mask[1, 150:] = False
    assert layer(x).shape == x.shape
    assert torch.equal(layer(x, mask), mixer(x, mask))
