"""The paper's gradient bounds (section 3.1, appendix) as properties, on autograd's Jacobians."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transnormer.ops import rms_norm

EPSILON = 1e-6
SLACK = 1 + 1e-9


def jacobian(function, s: torch.Tensor) -> torch.Tensor:
    return torch.autograd.functional.jacobian(function, s)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 12), scale=st.floats(0.01, 30), seed=st.integers(0, 2**16))
def test_softmax_gradient_is_at_most_a_quarter(n, scale, seed):
    s = torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale
    assert jacobian(lambda s: s.softmax(-1), s).abs().max() <= 0.25 * SLACK


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 12), scale=st.floats(1e-4, 100), seed=st.integers(0, 2**16))
def test_linear_attention_gradient_is_at_most_one_over_four_s(n, scale, seed):
    """|∂p_j/∂s_k| ≤ 1/(4|s_k|) for p = s / Σs with positive scores."""
    s = torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale + 1e-9
    bound = 1 / (4 * s)  # one bound per column k
    assert (jacobian(lambda s: s / s.sum(), s).abs() <= bound * SLACK).all()


@settings(max_examples=30, deadline=None)
@given(n=st.integers(2, 12), exponent=st.integers(1, 12))
def test_linear_attention_gradient_grows_without_bound_as_scores_vanish(n, exponent):
    s = torch.full((n,), 10.0**-exponent, dtype=torch.float64)
    largest = jacobian(lambda s: s / s.sum(), s).abs().max()
    # Equal scores: ∂p_k/∂s_k = (n-1)/(n² s), which passes every M once s is small enough.
    torch.testing.assert_close(largest, torch.tensor((n - 1) / n**2 * 10.0**exponent, dtype=torch.float64))


@settings(max_examples=80, deadline=None)
@given(
    n=st.integers(1, 10),
    d=st.integers(1, 16),
    log_scale=st.floats(-8, 3),
    seed=st.integers(0, 2**16),
)
def test_norm_attention_gradient_is_bounded(n, d, log_scale, seed):
    """o = rms(Σ_j s_j v_j): |∂L/∂s_j| ≤ c₁c₂/√ε, hence also the paper's looser 3c₁c₂d/(2√ε)."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(n, d, generator=generator, dtype=torch.float64)
    upstream = torch.randn(d, generator=generator, dtype=torch.float64)  # ∂L/∂o
    s = (torch.randn(n, generator=generator, dtype=torch.float64) * 10**log_scale).requires_grad_()
    (rms_norm(s @ values, eps=EPSILON) @ upstream).backward()
    c1, c2 = upstream.norm(), values.norm(dim=-1).max()
    tight = c1 * c2 / EPSILON**0.5
    assert (s.grad.abs() <= tight * SLACK).all()
    assert (s.grad.abs() <= 1.5 * d * tight * SLACK).all()


def test_the_tight_bound_is_reached():
    """At s = 0 the norm divides by √ε alone, so the bound cannot be improved."""
    values = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    s = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    upstream = values[0] / values[0].norm()
    (rms_norm(s @ values, eps=EPSILON) @ upstream).backward()
    torch.testing.assert_close(s.grad.abs().max().item(), 5.0 / EPSILON**0.5, rtol=1e-9, atol=0)
