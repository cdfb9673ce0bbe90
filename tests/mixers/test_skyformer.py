"""Skyformer against C(W + λI)⁻¹Cᵀ with an exact inverse, given the sampled positions, in float64; no package exists.

Covered: any length, padding, rows with fewer tokens than landmarks, the six iterations of the published code with its
batch-wide start and its scale (`skyformer_compat`, its random numbers ours). Not covered: the
published module itself.
"""

from __future__ import annotations

import pytest
import torch

from transnormer.errors import ConfigError
from transnormer.mixers.registry import build_mixer

HIDDEN, HEADS, SIZE = 32, 4, 8


def skyformer(num_features: int = 24, **options):
    torch.manual_seed(0)
    options = {"hidden_size": HIDDEN, "max_length": 256, "num_features": num_features, **options}
    return build_mixer("skyformer", num_heads=HEADS, causal=False, **options).double().eval()


def tokens(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def kernel(x, y):
    return torch.exp(-((x[..., :, None, :] - y[..., None, :, :]) ** 2).sum(-1) / 2)


def sampled(mixer, length: int) -> list[list[int]]:
    """The positions of the queries and keys that represent a sequence of `length`."""
    positions, exists = mixer.sample(torch.tensor([length]), length)
    assert exists.all()
    return [chosen[0].tolist() for chosen in positions]


def exact(mixer, x, queries: list[int], keys: list[int]):
    """The method for one sequence [L, hidden] from its sampled positions, inverted exactly."""
    q, k, v = (t[0].transpose(0, 1) for t in mixer.project(x[None]))
    q, k = q / mixer.head_dim**0.25, k / mixer.head_dim**0.25
    landmarks = torch.cat([q[:, queries], k[:, keys]], dim=1)
    core = kernel(landmarks, landmarks) + 0.1 * torch.eye(landmarks.shape[1], dtype=x.dtype)
    out = kernel(q, landmarks) @ torch.linalg.inv(core) @ kernel(landmarks, k) @ v
    return mixer.o_proj(out.transpose(0, 1).flatten(-2))


def test_it_is_the_nystrom_approximation_whatever_the_length_and_padding():
    mixer = skyformer(iterations=30)
    x, lengths = tokens(5, 61, HIDDEN), (61, 48, 12, 7, 1)
    y = mixer(x, torch.arange(61) < torch.tensor(lengths)[:, None])
    for row, length in enumerate(lengths):
        queries, keys = sampled(mixer, length)
        expected = exact(mixer, x[row, :length], queries, keys)
        torch.testing.assert_close(y[row, :length], expected, atol=1e-11, rtol=0)


def test_padding_does_not_change_a_row_shorter_than_its_landmarks():
    mixer = skyformer(num_features=128)
    x, mask = tokens(2, 90, HIDDEN), torch.arange(90) < torch.tensor([[90], [30]])
    torch.testing.assert_close(mixer(x, mask)[1:, :30], mixer(x[1:, :30]), atol=1e-11, rtol=0)


def test_one_token_is_drawn_from_each_segment_of_the_sequence():
    mixer = skyformer(num_features=64).train()
    for length in (20, 32, 33, 63, 64, 100, 256):
        used = min(32, length)
        for _ in range(20):
            (queries, keys), exists = mixer.sample(torch.tensor([length]), 256)
            assert exists[0].tolist() == [True] * used + [False] * (32 - used)
            for positions in (queries[0, :used], keys[0, :used]):
                assert (positions * used // length).tolist() == list(range(used))
    assert not torch.equal(queries, keys)


def test_every_token_of_a_segment_is_drawn_equally_often():
    mixer = skyformer(num_features=2).train()
    torch.manual_seed(0)
    queries = torch.stack([mixer.sample(torch.tensor([5]), 9)[0][0] for _ in range(2000)])
    assert queries.flatten().bincount(minlength=5).sub(400).abs().max() < 80


def test_with_all_tokens_sampled_it_is_kernelized_attention_but_for_the_ridge():
    mixer, x = skyformer(num_features=40, iterations=40), tokens(1, 20, HIDDEN)
    q, k, v = (t[0].transpose(0, 1) for t in mixer.project(x))
    both = torch.cat([q, k], dim=1) / SIZE**0.25
    full = kernel(both, both)
    ridge = 0.1 * torch.eye(40, dtype=torch.float64)
    expected = (full - ridge + ridge @ torch.linalg.inv(full + ridge) @ ridge)[:, :20, 20:] @ v
    torch.testing.assert_close(mixer(x)[0], mixer.o_proj(expected.transpose(0, 1).flatten(-2)), atol=1e-10, rtol=0)


def test_skyformer_compat_is_the_published_code():
    mixer = skyformer(num_features=24, skyformer_compat=True)
    x, mask = tokens(2, 40, HIDDEN), torch.arange(40) < torch.tensor([[40], [21]])
    torch.manual_seed(11)
    y = mixer(x, mask, packed=True)
    torch.manual_seed(11)
    (queries, keys), _ = mixer.sample(torch.tensor([40, 21]), 40)
    assert len(set(queries[0].tolist())) < 12  # with replacement
    real = mask[:, None, :, None]
    q, k, v = (t.transpose(1, 2) * real for t in mixer.project(x))
    q, k = q * 32**-0.25, k * 32**-0.25
    landmarks = []
    for row, length in enumerate((40, 21)):
        assert max(*queries[row].tolist(), *keys[row].tolist()) < length
        landmarks.append(torch.cat([q[row][:, queries[row]], k[row][:, keys[row]]], dim=1))
    landmarks = torch.stack(landmarks)
    core = kernel(landmarks, landmarks) + 0.1 * torch.eye(24, dtype=torch.float64)
    shrink = core.sum(-1).rsqrt()
    core = shrink[..., :, None] * core * shrink[..., None, :]
    inverse, eye = core.mT / core.sum(-2).max(), torch.eye(24, dtype=torch.float64)
    for _ in range(6):
        product = core @ inverse
        inverse = 0.25 * inverse @ (13 * eye - product @ (15 * eye - product @ (7 * eye - product)))
    weights = (kernel(k, landmarks) * shrink[..., None, :]) @ inverse * shrink[..., None, :] * real
    out = kernel(q, landmarks) @ (weights.mT @ v)
    expected = mixer.o_proj(out.transpose(1, 2).flatten(-2))
    torch.testing.assert_close(y[mask], expected[mask], atol=1e-12, rtol=0)
    assert not torch.equal(y, mixer(x, mask, packed=True))


def test_training_draws_anew_unless_told_not_to():
    x = tokens(1, 100, HIDDEN)
    mixer = skyformer().train()
    assert not torch.equal(mixer(x), mixer(x))
    fixed = skyformer(redraw=False, seed=3)
    assert torch.equal(fixed.train()(x), fixed.eval()(x))
    assert not torch.equal(fixed(x), skyformer(redraw=False, seed=4)(x))


def test_half_precision_inverts_in_float32():
    mixer = skyformer().float()
    x = tokens(2, 100, HIDDEN).float()
    exact_y = mixer(x)
    with torch.autocast("cpu", torch.bfloat16):
        y = mixer(x)
    assert ((y.float() - exact_y).norm() / exact_y.norm()).item() < 0.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_features": 25}, "even"),
        ({"num_features": 130, "max_length": 64}, "2·max_length = 128"),
        ({"iterations": 0}, "iterations"),
    ],
)
def test_bad_options_are_errors_when_built(options, message):
    with pytest.raises(ConfigError, match=message):
        skyformer(**options)
