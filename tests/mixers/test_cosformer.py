"""cosFormer against the paper's weights written out over all pairs; no package of it exists.

Covered, in float64: both directions, padding, and the original's M = length with positions from 1. Not covered: the
authors' code itself, which has no padding mask.
"""

from __future__ import annotations

import math

import pytest
import torch

from transnormer.errors import ConfigError
from transnormer.mixers.registry import build_mixer

HIDDEN, HEADS = 32, 4


def cosformer(causal: bool, max_length: int = 256, **options):
    torch.manual_seed(0)
    mixer = build_mixer(
        "cosformer", hidden_size=HIDDEN, num_heads=HEADS, causal=causal, max_length=max_length, **options
    )
    return mixer.double()


def tokens(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def all_pairs(mixer, x, causal: bool, m: int, first: int = 0):
    """Row-normalised relu(q_i)·relu(k_j) cos(π(i - j)/2M), one sequence."""
    q, k, v = (t.transpose(1, 2) for t in mixer.project(x))
    i = torch.arange(first, first + x.shape[1], dtype=torch.float64)
    weights = (q.relu() @ k.relu().mT) * torch.cos(math.pi * (i[:, None] - i[None, :]) / (2 * m))
    if causal:
        weights = weights * torch.ones_like(weights[0, 0]).tril()
    out = weights @ v / weights.sum(-1, keepdim=True).clamp(min=1e-6)
    return mixer.o_proj(out.transpose(1, 2).flatten(-2))


@pytest.mark.parametrize("causal", [True, False])
def test_it_is_the_formula_over_all_pairs_whatever_the_padding(causal):
    mixer = cosformer(causal)
    x, lengths = tokens(4, 200, HIDDEN), (200, 129, 64, 1)
    mask = torch.arange(200) < torch.tensor(lengths)[:, None]
    y = mixer(x, mask)
    for row, length in enumerate(lengths):
        expected = all_pairs(mixer, x[row : row + 1, :length], causal, m=256)
        torch.testing.assert_close(y[row, :length], expected[0], atol=1e-12, rtol=0)


@pytest.mark.parametrize("causal", [True, False])
def test_horizon_of_the_length_is_the_original(causal):
    mixer = cosformer(causal, horizon=77)
    x = tokens(2, 77, HIDDEN)
    torch.testing.assert_close(mixer(x), all_pairs(mixer, x, causal, m=77, first=1), atol=1e-12, rtol=0)
    assert not torch.allclose(mixer(x), cosformer(causal)(x))


def test_a_query_without_a_positive_feature_gives_zero():
    mixer = cosformer(causal=True)
    with torch.no_grad():
        mixer.q_proj.weight.zero_()
        mixer.q_proj.bias.fill_(-1)
    y = mixer(tokens(1, 9, HIDDEN))
    torch.testing.assert_close(y, mixer.o_proj.bias.expand_as(y), atol=0, rtol=0)


def test_a_text_beyond_the_horizon_is_refused():
    with pytest.raises(ConfigError, match="65 tokens"):
        cosformer(causal=False, max_length=64)(tokens(1, 65, HIDDEN))
    mixer, state = cosformer(causal=True, max_length=64), None
    state = mixer.init_state(2)
    _, state = mixer(tokens(2, 64, HIDDEN), None, state)
    with pytest.raises(ConfigError, match="raise the option horizon"):
        mixer(tokens(2, 1, HIDDEN), None, state)


def test_padding_beyond_the_horizon_is_allowed():
    mixer, x = cosformer(causal=False, max_length=64), tokens(2, 80, HIDDEN)
    mask = torch.arange(80) < torch.tensor([[64], [10]])
    torch.testing.assert_close(mixer(x, mask)[:1, :64], mixer(x[:1, :64]), atol=1e-12, rtol=0)
    with pytest.raises(ConfigError, match="65 tokens"):
        mixer(x, torch.arange(80) < torch.tensor([[65], [10]]))


def test_features_are_never_negative():
    """So that the denominator is a sum of terms that cannot cancel, in any precision."""
    mixer = cosformer(causal=True, max_length=300).float()
    _, state = mixer(tokens(1, 300, HIDDEN).float(), None, mixer.init_state(1))
    assert (state["memory"][..., -1] >= 0).all()


def test_half_precision_accumulates_in_float32():
    mixer = cosformer(causal=True, max_length=1024).float()
    x = tokens(2, 1000, HIDDEN).float()
    exact = mixer(x)
    with torch.autocast("cpu", torch.bfloat16):
        y, state = mixer(x, None, mixer.init_state(2))
    assert state["memory"].dtype == torch.float32
    assert ((y.float() - exact).norm() / exact.norm()).item() < 0.02


def test_bad_horizon_is_an_error_when_built():
    with pytest.raises(ConfigError, match="horizon"):
        cosformer(causal=True, horizon=0)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("size", [1, 10])
def test_float16_does_not_leave_its_range(causal, size):
    """Sums over a sequence and exponentials do, so they are kept in float32."""
    mixer = cosformer(causal=causal, max_length=1024).float()
    x = (tokens(1, 1000, HIDDEN).float() * size).requires_grad_()
    (exact,) = torch.autograd.grad(mixer(x).sum(), x)
    with torch.autocast("cpu", torch.float16):
        y = mixer(x)
    (found,) = torch.autograd.grad(y.float().sum(), x)
    assert y.isfinite().all()
    assert ((found - exact).norm() / exact.norm()).item() < 0.05
