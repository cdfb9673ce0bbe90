"""The locally accumulated attention score against the paper's growing window, token by token, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transnormer.analysis.dilution import RATIOS, dilution, locally_accumulated, mean_of

LENGTHS = st.integers(1, 24)


def matrix(length: int, seed: int, signed: bool = False) -> torch.Tensor:
    weights = torch.randn(2, 3, length, length, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return weights if signed else weights.softmax(dim=-1)


def grown(row: torch.Tensor, center: int) -> list[float]:
    """The share inside the window as it grows: left, right, left ..., an end of the sequence being passed over."""
    shares = (row.abs() / row.abs().sum()).tolist()
    left = right = center
    inside, scores, leftwards = shares[center], [shares[center]], True
    while right - left + 1 < len(shares):
        if leftwards and left > 0:
            left -= 1
            inside += shares[left]
            scores.append(inside)
        elif not leftwards and right < len(shares) - 1:
            right += 1
            inside += shares[right]
            scores.append(inside)
        leftwards = not leftwards
    return scores


@given(LENGTHS, st.integers(0, 1000), st.booleans())
def test_equals_the_window_that_grows_one_token_at_a_time(length, seed, signed):
    weights = matrix(length, seed, signed)
    expected = [[[grown(row, i) for i, row in enumerate(head)] for head in text] for text in weights]
    torch.testing.assert_close(locally_accumulated(weights), torch.tensor(expected, dtype=torch.float64))


@given(LENGTHS, st.integers(0, 1000), st.booleans())
def test_is_monotone_in_r_and_one_at_one(length, seed, signed):
    scores = locally_accumulated(matrix(length, seed, signed))
    assert (scores.diff(dim=-1) >= -1e-12).all()
    torch.testing.assert_close(scores[..., -1], torch.ones_like(scores[..., -1]))


@pytest.mark.parametrize("length", [1, 2, 7, 100, 130])
def test_uniform_attention_accumulates_r(length):
    scores = locally_accumulated(torch.full((1, 2, length, length), 0.3))
    wanted = torch.arange(1, length + 1, dtype=torch.float64) / length
    torch.testing.assert_close(scores, wanted.expand_as(scores))
    assert math.isclose(dilution([torch.full((1, 2, length, length), 0.3)]).area, 0.5)


def test_attention_to_oneself_is_all_there_at_once():
    curve = dilution([torch.eye(50)[None, None]])
    assert curve.scores[0] == 0
    assert all(score == 1 for score in curve.scores[2:])
    assert math.isclose(curve.area, 1 - 0.5 / 50)


def test_uniform_causal_attention_has_its_closed_form():
    length = 40
    causal = torch.ones(length, length, dtype=torch.float64).tril()[None, None]
    scores = locally_accumulated(causal)[0, 0]
    for i in range(length):
        for n in range(1, length + 1):
            first = max(0, min(i - n // 2, length - n))
            assert math.isclose(scores[i, n - 1], (min(i, first + n - 1) - first + 1) / (i + 1))


def test_texts_of_different_lengths_count_by_their_rows():
    near, far = torch.eye(20)[None, None], torch.eye(10).flip(0)[None, None]
    both, alone = dilution([near, far]), [dilution([near]), dilution([far])]
    assert math.isclose(both.area, (20 * alone[0].area + 10 * alone[1].area) / 30)
    assert both.scores[-1] == 1
    assert len(both.scores) == len(RATIOS)


def test_a_row_without_weight_is_in_no_mean():
    weights = torch.eye(10)
    weights[3] = 0
    found, whole = dilution([weights[None, None]]), dilution([torch.eye(10)[None, None]])
    assert found.empty_rows == 0.1
    assert math.isclose(found.area, whole.area)
    assert math.isnan(dilution([torch.zeros(1, 1, 4, 4)]).area)


def test_layers_count_the_same():
    one, two = dilution([torch.eye(10)[None, None]]), dilution([torch.ones(1, 1, 20, 20)])
    assert math.isclose(mean_of([one, two]).area, (one.area + two.area) / 2)
