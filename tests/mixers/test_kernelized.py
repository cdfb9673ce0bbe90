"""Kernelized attention against exp(-‖q̂ - k̂‖²/2)V with distances by torch.cdist, in float64; no package of it exists."""

from __future__ import annotations

import pytest
import torch

from transnormer.errors import ConfigError
from transnormer.mixers.registry import build_mixer

HIDDEN, HEADS = 32, 4


def kernelized(**options):
    torch.manual_seed(0)
    mixer = build_mixer("kernelized", hidden_size=HIDDEN, num_heads=HEADS, causal=False, max_length=64, **options)
    return mixer.double()


def tokens(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def kernel_and_values(mixer, x):
    q, k, v = (t.transpose(1, 2) for t in mixer.project(x))
    distances = torch.cdist(q / 8**0.25, k / 8**0.25, compute_mode="donot_use_mm_for_euclid_dist")
    return torch.exp(-(distances**2) / 2), v


def test_it_is_the_gaussian_kernel_over_all_pairs_of_real_tokens():
    mixer = kernelized()
    x, lengths = tokens(3, 50, HIDDEN), (50, 23, 1)
    y = mixer(x, torch.arange(50) < torch.tensor(lengths)[:, None])
    for row, length in enumerate(lengths):
        kernel, v = kernel_and_values(mixer, x[row : row + 1, :length])
        expected = mixer.o_proj((kernel @ v).transpose(1, 2).flatten(-2))
        torch.testing.assert_close(y[row, :length], expected[0], atol=1e-12, rtol=0)


def test_dropout_acts_on_the_kernel_in_training_only():
    mixer, x = kernelized(dropout=0.5), tokens(1, 20, HIDDEN)
    assert torch.equal(mixer.eval()(x), kernelized().eval()(x))
    kernel, v = kernel_and_values(mixer, x)
    torch.manual_seed(5)
    dropped = torch.nn.functional.dropout(kernel, 0.5)
    torch.manual_seed(5)
    y = mixer.train()(x)
    torch.testing.assert_close(y, mixer.o_proj((dropped @ v).transpose(1, 2).flatten(-2)), atol=1e-12, rtol=0)


def test_far_apart_queries_and_keys_underflow_to_zero_without_nan():
    mixer = kernelized().float()
    x = (tokens(2, 30, HIDDEN).float() * 1e3).requires_grad_()
    y = mixer(x)
    y.square().sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()


def test_bad_dropout_is_an_error_when_built():
    with pytest.raises(ConfigError, match="dropout"):
        kernelized(dropout=1.5)
