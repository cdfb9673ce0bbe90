"""Sampling is that of transformers' warpers, as operations of fixed shape on the logits' device."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from transnormer.errors import ConfigError
from transnormer.generate.sampling import Sampling

CASES = [
    Sampling(0.7),
    Sampling(1.3, top_k=1),
    Sampling(0.8, top_k=5),
    Sampling(1.0, top_k=1000),
    Sampling(1.0, top_p=0.5),
    Sampling(2.0, top_p=0.9),
    Sampling(0.5, top_p=1e-6),
    Sampling(1.0, top_p=1.0),
    Sampling(1.5, top_k=7, top_p=0.6),
]
EACH = pytest.mark.parametrize("sampling", CASES, ids=str)


def logits_of(rows: int, vocabulary: int) -> torch.Tensor:
    return 2 * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(1))


def warped(sampling: Sampling, logits: torch.Tensor) -> torch.Tensor:
    """By transformers, in the order of its generate."""
    warpers: list[Any] = [TemperatureLogitsWarper(sampling.temperature)]
    if sampling.top_k is not None:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p is not None and sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    for warper in warpers:
        logits = warper(None, logits)
    return logits


@EACH
def test_the_same_tokens_remain_as_with_transformers(sampling: Sampling) -> None:
    logits = logits_of(500, 40)
    expected = warped(sampling, logits)
    found = sampling.filter(logits)
    assert torch.equal(found.isinf(), expected.isinf())
    torch.testing.assert_close((found / sampling.temperature).softmax(dim=-1), expected.softmax(dim=-1))


@EACH
def test_samples_follow_the_distribution_of_transformers(sampling: Sampling) -> None:
    count, logits = 40_000, logits_of(1, 12)
    torch.manual_seed(0)
    tokens = sampling.sample(logits.expand(count, -1))
    assert tokens.shape == (count, 1)
    expected = warped(sampling, logits)[0].softmax(dim=-1)
    frequencies = tokens.flatten().bincount(minlength=12) / count
    torch.testing.assert_close(frequencies, expected, atol=0.01, rtol=0)
    assert not frequencies[expected == 0].any()


def test_half_precision_logits_are_sampled_in_float32() -> None:
    """Noise in bfloat16 would repeat itself, and favour the first of many equal tokens."""
    logits = torch.zeros(200, 50_000, dtype=torch.bfloat16)
    torch.manual_seed(0)
    tokens = Sampling().sample(logits)
    assert tokens.unique().numel() > 190


def test_ties_with_the_last_token_stay() -> None:
    logits = torch.tensor([[3.0, 2.0, 2.0, 1.0]])
    assert Sampling(top_k=2).filter(logits).tolist() == [[3.0, 2.0, 2.0, -math.inf]]


def test_a_seed_repeats_and_the_result_may_be_given() -> None:
    logits, out = logits_of(64, 100), torch.zeros(64, 1, dtype=torch.long)
    torch.manual_seed(3)
    first = Sampling(2.0, top_p=0.9).sample(logits)
    torch.manual_seed(3)
    assert Sampling(2.0, top_p=0.9).sample(logits, out=out) is out
    assert torch.equal(first, out)
    assert not torch.equal(first, Sampling(2.0, top_p=0.9).sample(logits))


def test_the_coldest_and_the_hottest() -> None:
    logits = logits_of(2000, 10)
    assert torch.equal(Sampling(1e-30).sample(logits), logits.argmax(dim=-1, keepdim=True))
    frequencies = Sampling(1e38).sample(logits).flatten().bincount(minlength=10) / 2000
    torch.testing.assert_close(frequencies, torch.full((10,), 0.1), atol=0.04, rtol=0)


def test_nothing_asks_the_host() -> None:
    """A tensor without data stands in for one on a GPU: whoever reads a value of it fails."""
    logits = torch.zeros(2, 100, device="meta", dtype=torch.bfloat16)
    for sampling in CASES:
        assert sampling.sample(logits).device.type == "meta"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"temperature": -3.0}, "temperature must be above 0"),
        ({"temperature": float("nan")}, "temperature must be above 0"),
        ({"temperature": float("inf")}, "temperature must be finite"),
        ({"temperature": 1e-40}, "temperature must be finite and at least 1e-30"),
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"top_k": -1}, "top_k must be at least 1"),
        ({"top_p": 0.0}, "top_p must be above 0"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Sampling(**options)
