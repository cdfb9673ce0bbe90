"""Performer against performer-pytorch 1.1.4 and against n×n formulas.

The package covers, in float64: the features of queries and of bidirectional keys (`softmax_kernel`), bidirectional
attention (`FastAttention`, its projection replaced by ours) on rows of every padded length, and the causal sum over
given features (`causal_linear_attention_noncuda`, its extra 1e-6 switched off). It does not cover causal keys, whose
published stabiliser sees the future: those are compared with the kernel written out over all pairs. The quirks of
`skyformer_compat` are compared with a formula of the code they come from.
"""

from __future__ import annotations

import pytest
import torch

from transnormer.errors import ConfigError
from transnormer.mixers.performer import orthogonal_gaussian
from transnormer.mixers.registry import build_mixer

HIDDEN, HEADS = 32, 4


def performer(causal: bool, **options):
    torch.manual_seed(0)
    hidden = options.pop("hidden_size", HIDDEN)
    return build_mixer(
        "performer", hidden_size=hidden, num_heads=HEADS, causal=causal, max_length=256, **options
    ).double()


def tokens(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def heads_first(mixer, x):
    return [t.transpose(1, 2) for t in mixer.project(x)]


@pytest.fixture(scope="module")
def package():
    return pytest.importorskip("performer_pytorch.performer_pytorch", reason="performer-pytorch is not installed")


def test_features_are_those_of_the_package(package):
    mixer = performer(causal=False, num_features=40)
    q, k, _ = heads_first(mixer, tokens(2, 30, HIDDEN))
    weight = mixer.projection
    expected_q = package.softmax_kernel(q, projection_matrix=weight, is_query=True)
    expected_k = package.softmax_kernel(k, projection_matrix=weight, is_query=False)
    # Ours leave out the factor m^(-1/2), which cancels in the quotient.
    ours_q = mixer._query_features(q.transpose(1, 2), weight).transpose(1, 2) * 40**-0.5
    ours_k = mixer._key_features(k.transpose(1, 2), weight, None).transpose(1, 2) * 40**-0.5
    torch.testing.assert_close(ours_q, expected_q, atol=1e-14, rtol=0)
    torch.testing.assert_close(ours_k, expected_k, atol=1e-14, rtol=0)


def test_bidirectional_attention_is_that_of_the_package(package):
    mixer = performer(causal=False, num_features=40)
    oracle = package.FastAttention(mixer.head_dim, nb_features=40)
    oracle.projection_matrix = mixer.projection
    x, lengths = tokens(3, 50, HIDDEN) * 2, (50, 33, 1)
    mask = torch.arange(50) < torch.tensor(lengths)[:, None]
    y = mixer(x, mask)
    for row, length in enumerate(lengths):
        expected = oracle(*heads_first(mixer, x[row : row + 1, :length]))
        expected = mixer.o_proj(expected.transpose(1, 2).flatten(-2))
        torch.testing.assert_close(y[row, :length], expected[0], atol=1e-13, rtol=0)


def test_causal_sum_is_that_of_the_package(package):
    mixer = performer(causal=True, num_features=40)
    x = tokens(2, 150, HIDDEN)
    q, k, v = mixer.project(x)
    weight = mixer.projection
    features = (mixer._query_features(q, weight), mixer._key_features(k, weight, None), v)
    expected = package.causal_linear_attention_noncuda(*(t.transpose(1, 2) for t in features), eps=0)
    expected = mixer.o_proj(expected.transpose(1, 2).flatten(-2))
    torch.testing.assert_close(mixer(x), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("head_dim", [8, 128])
def test_causal_attention_is_the_estimated_kernel_over_all_pairs(head_dim):
    """Head size 128 has features above the exponent's limit, whose constants must cancel."""
    mixer = performer(causal=True, hidden_size=HEADS * head_dim, num_features=24, epsilon=1e-60)
    weight = mixer.projection
    assert bool((weight.square().sum(-1) / 2 > 40).any()) == (head_dim == 128)
    x = tokens(2, 70, HEADS * head_dim) * 3
    q, k, v = heads_first(mixer, x)
    q, k = q * head_dim**-0.25, k * head_dim**-0.25
    log_q = q @ weight.T - q.square().sum(-1, keepdim=True) / 2
    log_k = k @ weight.T - k.square().sum(-1, keepdim=True) / 2
    log_kernel = torch.logsumexp(log_q[..., :, None, :] + log_k[..., None, :, :], dim=-1)
    future = torch.ones(70, 70, dtype=torch.bool).triu(1)
    expected = log_kernel.masked_fill(future, -torch.inf).softmax(-1) @ v
    torch.testing.assert_close(mixer(x), mixer.o_proj(expected.transpose(1, 2).flatten(-2)), atol=1e-10, rtol=0)


@pytest.mark.parametrize("causal", [True, False])
def test_many_features_approach_softmax(causal):
    errors = []
    for count in (64, 16384):
        mixer = performer(causal=causal, num_features=count, epsilon=1e-9)  # epsilon is a bias of its own
        x = tokens(1, 40, HIDDEN) * 0.7
        q, k, v = heads_first(mixer, x)
        exact = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        exact = mixer.o_proj(exact.transpose(1, 2).flatten(-2))
        errors.append(((mixer(x) - exact).norm() / exact.norm()).item())
    assert errors[1] < 0.03
    assert errors[1] < errors[0] / 3


def test_a_huge_last_token_changes_nothing_before_it():
    mixer = performer(causal=True)
    x = tokens(1, 90, HIDDEN)
    changed = x.clone()
    changed[:, -1] *= 1e3
    assert torch.equal(mixer(x)[:, :-1], mixer(changed)[:, :-1])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("size", [1e-3, 1e3])
def test_outputs_and_gradients_are_finite_in_float32_at_any_size(causal, size):
    mixer = performer(causal=causal, hidden_size=512).float()
    mask = torch.ones(2, 70, dtype=torch.bool)
    mask[1, 40:] = False
    x = (tokens(2, 70, 512).float() * size).requires_grad_()
    with torch.no_grad():
        x[1, 40:] *= 100
    y = mixer(x, mask)
    y.square().sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in mixer.parameters())


def test_skyformer_compat_is_the_code_behind_the_published_row():
    mixer = performer(causal=False, num_features=16, skyformer_compat=True)
    x, mask = tokens(2, 20, HIDDEN), torch.arange(20) < torch.tensor([[20], [11]])
    q, k, v = heads_first(mixer, x)
    real = mask[:, None, :, None]
    k, v = k * real, v * real
    q, k = q / mixer.head_dim**0.5, k / mixer.head_dim**0.5
    weight = mixer.projection
    dash_q, dash_k = q @ weight.T, k @ weight.T
    phi_q = torch.exp(dash_q - (q * q).sum(-1, keepdim=True) / 2 - dash_q.max(-1, keepdim=True).values) + 1e-4
    phi_k = torch.exp(dash_k - (k * k).sum(-1, keepdim=True) / 2 - dash_k.max()) + 1e-4
    scores = phi_q @ phi_k.mT
    expected = (scores / scores.sum(-1, keepdim=True)) @ v
    y = mixer(x, mask, packed=True)
    torch.testing.assert_close(y, mixer.o_proj(expected.transpose(1, 2).flatten(-2)), atol=1e-13, rtol=0)


def test_projection_is_gaussian_with_orthogonal_blocks():
    weight = orthogonal_gaussian(8 * 500, 8, torch.Generator().manual_seed(0))
    block = weight[:8] @ weight[:8].T
    torch.testing.assert_close(block, block.diagonal().diag(), atol=1e-5, rtol=0)
    torch.testing.assert_close(weight.mean(0), torch.zeros(8), atol=0.06, rtol=0)
    torch.testing.assert_close(weight.T @ weight / len(weight), torch.eye(8), atol=0.08, rtol=0)
    assert abs(weight.pow(4).mean().item() - 3) < 0.25  # the fourth moment of N(0, 1)


def test_seed_decides_the_projection_and_redraw_changes_it_in_training_only():
    first, second = performer(causal=True, seed=7), performer(causal=True)
    assert torch.equal(first.projection, performer(causal=True, seed=7).projection)
    assert not torch.equal(first.projection, second.projection)
    mixer, x = performer(causal=True, redraw=True), tokens(1, 20, HIDDEN)
    assert not torch.equal(mixer.train()(x), mixer(x))
    assert torch.equal(mixer.eval()(x), performer(causal=True).eval()(x))


def test_half_precision_keeps_the_exponentials_in_float32():
    mixer = performer(causal=True).float()
    x = tokens(2, 300, HIDDEN).float()
    exact = mixer(x)
    with torch.autocast("cpu", torch.bfloat16):
        y, state = mixer(x, None, mixer.init_state(2))
    assert state["memory"].dtype == torch.float32
    assert ((y.float() - exact).norm() / exact.norm()).item() < 0.02
    assert mixer.bfloat16()(x.bfloat16()).dtype == torch.bfloat16


def test_a_half_precision_module_keeps_the_constants_of_its_features():
    """Those of heads of 64 are large; rounded to bfloat16 they would change the weight of epsilon."""
    mixer = performer(causal=True, hidden_size=256).float()
    x = tokens(1, 500, 256).float()
    exact, rounded = mixer(x), mixer.bfloat16()(x.bfloat16()).float()
    assert ((rounded - exact).norm() / exact.norm()).item() < 0.009


@pytest.mark.parametrize(
    ("options", "message"),
    [({"num_features": 0}, "num_features"), ({"epsilon": 0.0}, "epsilon"), ({"skyformer_compat": True}, "future")],
)
def test_bad_options_are_errors_when_built(options, message):
    with pytest.raises(ConfigError, match=message):
        performer(causal=True, **options)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("size", [1, 10])
def test_float16_does_not_leave_its_range(causal, size):
    """Sums over a sequence and exponentials do, so they are kept in float32."""
    mixer = performer(causal=causal).float()
    x = (tokens(1, 1000, HIDDEN).float() * size).requires_grad_()
    (exact,) = torch.autograd.grad(mixer(x).sum(), x)
    with torch.autocast("cpu", torch.float16):
        y = mixer(x)
    (found,) = torch.autograd.grad(y.float().sum(), x)
    assert y.isfinite().all()
    assert ((found - exact).norm() / exact.norm()).item() < 0.05
