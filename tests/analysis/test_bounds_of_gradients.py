"""The paper's bounds of |∂p/∂s| and |∂L/∂s|: on the drawn rows, and as laws of any scores and values."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transnormer.analysis.gradient_bounds import EPS, KEYS, linear_weights, measure, norm_output, steepest

SLACK = 1 + 1e-9


@pytest.fixture(scope="module")
def rows() -> list[dict[str, float]]:
    return measure()


def test_no_gradient_exceeds_its_bound(rows) -> None:
    for row in rows:
        for kind in ("softmax_dp", "linear_dp", "softmax_dL", "linear_dL", "norm_dL"):
            assert 0 < row[kind] <= row[f"{kind}_bound"] * SLACK, (kind, row["s"])
        assert row["norm_dL"] <= row["norm_dL_tight_bound"] * SLACK


def test_half_of_the_weight_is_where_the_bounds_are_reached(rows) -> None:
    for row in rows:
        assert row["softmax_dp"] == pytest.approx(1 / 4, rel=1e-9)
        assert row["linear_dp"] == pytest.approx(1 / (4 * row["s"]), rel=1e-9)


def test_linear_has_no_end_and_norm_attention_has(rows) -> None:
    assert rows[0]["linear_dL"] > 1e5 > rows[0]["norm_dL_tight_bound"] >= rows[0]["norm_dL"]
    assert rows[0]["norm_dL"] == pytest.approx(1 / math.sqrt(EPS), rel=1e-3)  # the tight bound is tight
    assert rows[0]["linear_dL"] / rows[8]["linear_dL"] == pytest.approx(10, rel=1e-6)  # a tenth of the score


@settings(max_examples=80, deadline=None)
@given(n=st.integers(2, 12), d=st.integers(1, 16), log_scale=st.floats(-6, 3), seed=st.integers(0, 2**16))
def test_what_the_loss_sees_of_any_row_is_bounded(n, d, log_scale, seed) -> None:
    """c₁ = 1: softmax c₂/2, linear c₂/(2s), NormAttention c₂/√ε; the paper's √n c₂/4 is looser from n = 4 on."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(n, d, generator=generator, dtype=torch.float64)
    signed = torch.randn(n, generator=generator, dtype=torch.float64) * 10**log_scale
    scores = signed.abs() + 1e-9
    longest = values.norm(dim=-1).max()
    softmax = steepest(lambda s: s.softmax(-1) @ values, signed)
    linear = steepest(lambda s: linear_weights(s) @ values, scores)
    norm = steepest(norm_output(values), scores)
    assert (softmax <= longest / 2 * SLACK).all()
    assert (linear <= longest / (2 * scores) * SLACK).all()
    assert (norm <= longest / math.sqrt(EPS) * SLACK).all()
    assert (norm <= 1.5 * d * longest / math.sqrt(EPS) * SLACK).all()
    if n >= KEYS:
        assert (softmax <= math.sqrt(n) * longest / 4 * SLACK).all()


def test_two_opposite_values_break_the_papers_bound_for_softmax() -> None:
    """√n c₁c₂/4 takes the norm of a row of ∂p/∂s for its largest entry; with two keys it is exceeded."""
    values = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    seen = steepest(lambda s: s.softmax(-1) @ values, torch.zeros(2, dtype=torch.float64))
    torch.testing.assert_close(seen, torch.full((2,), 0.5, dtype=torch.float64))
    assert (seen > math.sqrt(2) / 4).all()
