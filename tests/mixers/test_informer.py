"""Informer against transformers' InformerProbSparseAttention and a brute force.

InformerProbSparseAttention covers, in float64 and with our sampled keys replaced by those that it draws: the measure,
the choice of queries, their attention, the mean of the values, output and gradients, without padding; and dense
attention where all queries are active. It does not cover our own sampling (it draws one set of n keys for all
queries, we draw u for each query, as the paper does) nor padding, which it lets into measure and mean: a brute force
over each row alone covers both.
"""

from __future__ import annotations

import math

import pytest
import torch

from transnormer.errors import ConfigError
from transnormer.mixers.registry import build_mixer

informer = pytest.importorskip("transformers.models.informer.modeling_informer", reason="the oracle is transformers'")

HIDDEN, HEADS = 12, 3


def ours(**options):
    torch.manual_seed(0)
    mixer = build_mixer("informer", hidden_size=HIDDEN, num_heads=HEADS, causal=False, max_length=256, **options)
    return mixer.double().eval()


def theirs(mixer):
    oracle = informer.InformerProbSparseAttention(HIDDEN, HEADS, sampling_factor=mixer.factor).double().eval()
    weights = {key.replace("o_proj", "out_proj"): value for key, value in mixer.state_dict().items()}
    oracle.load_state_dict(weights)
    return oracle


def tokens(batch: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(batch, length, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize(("length", "factor"), [(9, 1), (50, 1), (50, 2), (140, 5)])
def test_equals_transformers_on_its_sample(length, factor, monkeypatch):
    mixer = ours(factor=factor)
    oracle = theirs(mixer)
    # It takes the logarithm of n + 1.
    assert math.ceil(math.log(length)) == math.ceil(math.log1p(length))
    torch.manual_seed(7)
    index = torch.randint(0, length, (length,)).expand(2, length, length)
    monkeypatch.setattr(mixer, "sample_keys", lambda *_: (index, torch.ones_like(index[:, :1], dtype=torch.bool)))
    grads = []
    for module, projections in (
        (mixer, (mixer.q_proj, mixer.k_proj, mixer.v_proj)),
        (lambda x: oracle(x)[0], (oracle.q_proj, oracle.k_proj, oracle.v_proj)),
    ):
        x = tokens(2, length).requires_grad_()
        torch.manual_seed(7)
        y = module(x)
        y.square().sum().backward()
        grads.append([y.detach(), x.grad, *(projection.weight.grad for projection in projections)])
    for mine, expected in zip(*grads, strict=True):
        torch.testing.assert_close(mine, expected, atol=1e-10, rtol=1e-12)
    means = mixer.o_proj(mixer.v_proj(tokens(2, length)).mean(dim=1, keepdim=True))
    lazy = ((grads[0][0] - means).abs() < 1e-12).all(-1).sum()
    assert 0 < lazy < 2 * length  # queries of both kinds


@pytest.mark.parametrize("length", [1, 2, 30])
def test_with_all_queries_active_it_is_dense_attention(length):
    mixer = ours(factor=30)
    x = tokens(2, length)
    torch.testing.assert_close(mixer(x), theirs(mixer)(x)[0], atol=1e-12, rtol=0)


def brute_force(mixer, x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """One row [n, hidden] without padding, one query at a time; also the number of queries that attend."""
    length = x.shape[0]
    active = max(min(length, mixer.factor * math.ceil(math.log(length))), 1)
    sample = mixer.sample_keys(torch.tensor([length]), length)[0][0]  # [n, u]
    assert sample.shape == (length, active)
    q, k, v = (projection(x).reshape(length, HEADS, -1) for projection in (mixer.q_proj, mixer.k_proj, mixer.v_proj))
    out = v.mean(dim=0, keepdim=True).repeat(length, 1, 1)
    for h in range(HEADS):
        scores = q[:, h] @ k[:, h].T
        measure = torch.stack([s[i].max() - s[i].sum() / length for s, i in zip(scores, sample, strict=True)])
        for t in measure.argsort(descending=True)[:active]:
            out[t, h] = (scores[t] / q.shape[-1] ** 0.5).softmax(0) @ v[:, h]
    return mixer.o_proj(out.flatten(1)), active


@pytest.mark.parametrize("factor", [1, 3])
def test_each_row_of_a_padded_batch_equals_brute_force_on_its_own(factor):
    mixer = ours(factor=factor)
    lengths = [150, 149, 55, 20, 3, 1]
    x, padded = tokens(len(lengths), 150), tokens(len(lengths), 150, seed=2) * 10
    mask = torch.arange(150) < torch.tensor(lengths)[:, None]
    y = mixer(torch.where(mask[..., None], x, padded), mask)
    for row, length in enumerate(lengths):
        expected, active = brute_force(mixer, x[row, :length])
        torch.testing.assert_close(y[row, :length], expected, atol=1e-12, rtol=0)
        assert active < length or length <= 3


def test_a_row_without_real_tokens_is_finite():
    mask = torch.ones(2, 40, dtype=torch.bool)
    mask[1] = False
    x = tokens(2, 40).requires_grad_()
    y = ours()(x, mask)
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()


def test_the_number_of_active_queries_is_the_formula():
    mixer = ours(factor=1)
    around_powers = [n for k in range(1, 14) for n in (math.floor(math.e**k), math.ceil(math.e**k))]
    lengths = [*range(1, 3000), *around_powers]
    expected = [max(min(n, math.ceil(math.log(n))), 1) for n in lengths]
    assert mixer.num_active(torch.tensor(lengths)).tolist() == expected
    assert [mixer.most_active(n) for n in lengths] == expected
    published = {1024: (19, 133), 2048: (17, 136), 4096: (16, 144)}
    for length, (factor, active) in published.items():
        assert ours(factor=factor).most_active(length) == active


def test_the_sample_is_drawn_from_the_row_and_differs_between_queries():
    index, drawn = ours(factor=5).sample_keys(torch.tensor([300, 7]), 300)
    assert (index >= 0).all()
    assert index[0].max() == 299
    assert index[1].max() == 6
    assert drawn.sum(dim=-1).flatten().tolist() == [30, 7]
    assert index[0].unique(dim=0).shape[0] == 300
    counts = index[0].flatten().bincount(minlength=300).double()
    assert ((counts - 30) ** 2 / 30).sum() < 400  # chi-square of 299 degrees of freedom


def test_training_draws_anew_and_evaluation_does_not():
    x = tokens(1, 100)
    mixer, fixed, other = ours(factor=1), ours(factor=1, redraw=False), ours(factor=1, seed=1)
    assert torch.equal(mixer(x), fixed.train()(x))
    assert not torch.equal(mixer(x), other(x))
    mixer.train()
    assert not torch.equal(mixer(x), mixer(x))


def test_skyformer_compat_counts_padding_and_draws_anew_in_evaluation():
    x, mask = tokens(1, 30), torch.arange(30)[None] < 20
    dense = ours(factor=30, skyformer_compat=True)
    torch.testing.assert_close(dense(x, mask)[:, :20], dense(x)[:, :20], atol=1e-12, rtol=0)
    sparse = ours(factor=1, skyformer_compat=True)
    assert not all(torch.equal(sparse(x), sparse(x)) for _ in range(5))


def test_bad_factor_is_an_error_when_built():
    with pytest.raises(ConfigError, match="factor"):
        ours(factor=0)
