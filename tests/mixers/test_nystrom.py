"""Nyströmformer against transformers' `NystromformerSelfAttention`, nystrom-attention 0.0.14 and its formula.

Both packages cover, in float64 and where the landmarks divide the length: the three factors, the pseudo-inverse with
its start per matrix (transformers, option "exact") and over the batch (`skyformer_compat`), and the convolution. Our
segments of real tokens at other lengths, and padding, are compared with the formula written out for one row.
"""

from __future__ import annotations

import pytest
import torch
from transformers import NystromformerConfig
from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

from transnormer.errors import ConfigError
from transnormer.mixers.registry import build_mixer

HIDDEN, HEADS = 32, 4


def nystrom(num_landmarks: int = 8, num_heads: int = HEADS, **options):
    torch.manual_seed(0)
    options = {"max_length": 256, "num_landmarks": num_landmarks, **options}
    return build_mixer("nystrom", hidden_size=HIDDEN, num_heads=num_heads, causal=False, **options).double().eval()


def tokens(*shape: int, seed: int = 1) -> torch.Tensor:
    # Slow drifts make the segment means differ, as they do in text: of white noise they would all be alike.
    noise = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return noise + noise.cumsum(dim=1) * 0.3


def transformers_module(mixer, length: int, start: str) -> NystromformerSelfAttention:
    kernel = mixer.conv.kernel_size[0] if mixer.conv else 3
    config = NystromformerConfig(
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        num_landmarks=mixer.num_landmarks,
        segment_means_seq_len=length,
        conv_kernel_size=kernel,
        attention_probs_dropout_prob=0.0,
    )
    oracle = NystromformerSelfAttention(config).double().eval()
    oracle.init_option = start
    with torch.no_grad():
        for ours, theirs in ((mixer.q_proj, oracle.query), (mixer.k_proj, oracle.key), (mixer.v_proj, oracle.value)):
            theirs.load_state_dict(ours.state_dict())
        oracle.conv.weight.copy_(mixer.conv.weight if mixer.conv else torch.zeros_like(oracle.conv.weight))
    return oracle


@pytest.mark.parametrize("conv", [None, 5])
def test_it_is_transformers_module(conv):
    mixer = nystrom(conv_kernel_size=conv)
    x = tokens(3, 40, HIDDEN)
    expected = mixer.o_proj(transformers_module(mixer, 40, "exact")(x)[0])
    torch.testing.assert_close(mixer(x), expected, atol=1e-12, rtol=0)


def test_skyformer_compat_starts_the_inverse_from_the_whole_batch():
    mixer = nystrom(skyformer_compat=True)
    x = tokens(3, 40, HIDDEN)
    expected = mixer.o_proj(transformers_module(mixer, 40, "original")(x)[0])
    torch.testing.assert_close(mixer(x), expected, atol=1e-12, rtol=0)
    assert (mixer(x)[:1] - mixer(x[:1])).abs().max() > 1e-8


def test_it_is_the_package():
    package = pytest.importorskip("nystrom_attention", reason="nystrom-attention is not installed")
    mixer = nystrom(num_heads=1)
    oracle = package.NystromAttention(HIDDEN, dim_head=HIDDEN, heads=1, num_landmarks=8, residual=False).double()
    with torch.no_grad():
        projections = (mixer.q_proj, mixer.k_proj, mixer.v_proj)
        for projection in projections:
            projection.bias.zero_()
        oracle.to_qkv.weight.copy_(torch.cat([p.weight for p in projections]))
        oracle.to_out[0].load_state_dict(mixer.o_proj.state_dict())
    # The package starts its inverse from the whole batch: one sequence at a time is the same.
    x = tokens(1, 40, HIDDEN)
    torch.testing.assert_close(mixer(x), oracle(x), atol=1e-12, rtol=0)


def one_row(mixer, x):
    """The method for one sequence [L, hidden], its segments as lists of tokens."""
    length, size = len(x), mixer.head_dim
    used = min(mixer.num_landmarks, length)
    members = [[j for j in range(length) if j * used // length == segment] for segment in range(used)]
    heads = []
    for q, k, v in zip(*(t[0].unbind(dim=1) for t in mixer.project(x[None])), strict=True):
        q_means = torch.stack([q[rows].mean(dim=0) for rows in members])
        k_means = torch.stack([k[rows].mean(dim=0) for rows in members])
        first, core, last = (
            (a @ b.T / size**0.5).softmax(-1) for a, b in ((q, k_means), (q_means, k_means), (q_means, k))
        )
        inverse = core.T / core.sum(0).max()
        for _ in range(mixer.iterations):
            product = core @ inverse
            eye = torch.eye(used, dtype=x.dtype)
            inverse = 0.25 * inverse @ (13 * eye - product @ (15 * eye - product @ (7 * eye - product)))
        heads.append(first @ inverse @ last @ v)
    return mixer.o_proj(torch.cat(heads, dim=-1))


def test_any_length_and_padding_follow_the_formula_of_a_row():
    mixer = nystrom(num_landmarks=12)
    x, lengths = tokens(5, 61, HIDDEN), (61, 48, 12, 7, 1)
    y = mixer(x, torch.arange(61) < torch.tensor(lengths)[:, None])
    for row, length in enumerate(lengths):
        torch.testing.assert_close(y[row, :length], one_row(mixer, x[row, :length]), atol=1e-11, rtol=0)


def test_with_a_landmark_per_token_it_converges_to_softmax():
    mixer = nystrom(num_landmarks=32, iterations=60)
    x = torch.randn(2, 9, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    exact = torch.nn.functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in mixer.project(x)))
    torch.testing.assert_close(mixer(x), mixer.o_proj(exact.transpose(1, 2).flatten(-2)), atol=1e-6, rtol=0)


def test_skyformer_compat_counts_padding_as_zeros_in_the_means():
    mixer = nystrom(skyformer_compat=True)
    x, mask = tokens(2, 40, HIDDEN), torch.arange(40) < torch.tensor([[40], [21]])
    real = mask[:, None, :, None]
    q, k, v = (t.transpose(1, 2) for t in mixer.project(x))
    q, k = q * real / 8**0.25, k * real / 8**0.25
    q_means, k_means = (t.reshape(2, HEADS, 8, 5, 8).mean(dim=3) for t in (q, k))
    first, core = (q @ k_means.mT).softmax(-1), (q_means @ k_means.mT).softmax(-1)
    last = (q_means @ k.mT - 1e9 * ~mask[:, None, None, :]).softmax(-1)
    inverse, eye = core.mT / core.sum(-2).max(), torch.eye(8, dtype=torch.float64)
    for _ in range(6):
        product = core @ inverse
        inverse = 0.25 * inverse @ (13 * eye - product @ (15 * eye - product @ (7 * eye - product)))
    expected = mixer.o_proj((first @ inverse @ last @ v).transpose(1, 2).flatten(-2))
    y = mixer(x, mask, packed=True)
    torch.testing.assert_close(y[mask], expected[mask], atol=1e-12, rtol=0)


def test_convolution_does_not_read_padding():
    mixer = nystrom(conv_kernel_size=7)
    x, mask = tokens(2, 30, HIDDEN), torch.arange(30) < torch.tensor([[30], [17]])
    torch.testing.assert_close(mixer(x, mask)[1:, :17], mixer(x[1:, :17]), atol=1e-11, rtol=0)


def test_half_precision_inverts_in_float32():
    mixer = nystrom(num_landmarks=32).float()
    x = tokens(2, 100, HIDDEN).float()
    exact = mixer(x)
    with torch.autocast("cpu", torch.bfloat16):
        y = mixer(x)
    assert ((y.float() - exact).norm() / exact.norm()).item() < 0.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_landmarks": 65, "max_length": 64}, "max_length 64"),
        ({"num_landmarks": 0}, "num_landmarks"),
        ({"iterations": 0}, "iterations"),
        ({"conv_kernel_size": 4}, "odd"),
    ],
)
def test_bad_options_are_errors_when_built(options, message):
    with pytest.raises(ConfigError, match=message):
        nystrom(**options)
