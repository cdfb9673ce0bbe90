"""norm_attention against its definition: every path, every gradient, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transnormer.errors import ConfigError
from transnormer.ops import norm_attention
from transnormer.ops.norm_attention.reference import norm_attention_reference

pytestmark = pytest.mark.usefixtures("poisoned_empty")


def inputs(batch, length, heads=2, d=8, e=8, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, length, heads, d), (batch, length, heads, d), (batch, length, heads, e), (batch, heads, d, e)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 3),
    length=st.sampled_from([1, 2, 5, 63, 64, 65, 127, 128, 129, 200]),
    e=st.sampled_from([1, 3, 8]),
    causal=st.booleans(),
    feature_map=st.sampled_from(["1+elu", "elu", "identity"]),
    masked=st.booleans(),
    carried=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_every_path_equals_the_reference(batch, length, e, causal, feature_map, masked, carried, seed):
    q, k, v, state = inputs(batch, length, e=e, seed=seed)
    mask = torch.rand(batch, length, generator=torch.Generator().manual_seed(seed)) < 0.7 if masked else None
    state = state if carried else None
    expected, expected_state = norm_attention_reference(
        q, k, v, causal=causal, feature_map=feature_map, mask=mask, state=state
    )
    out, new_state = norm_attention(
        q, k, v, causal=causal, feature_map=feature_map, mask=mask, state=state, return_state=True
    )
    torch.testing.assert_close(out, expected, atol=1e-10, rtol=1e-12)
    torch.testing.assert_close(new_state, expected_state, atol=1e-10, rtol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 3, 70])
def test_gradients(causal, length):
    q, k, v, state = (x.requires_grad_() for x in inputs(1, length, d=3, e=2))
    mask = torch.ones(1, length, dtype=torch.bool)
    mask[:, length // 2 + 1 :] = False

    def op(q, k, v, state):
        return norm_attention(q, k, v, causal=causal, mask=mask, state=state, return_state=True)

    assert torch.autograd.gradcheck(op, (q, k, v, state), fast_mode=length > 10)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 200, 1000])
def test_step_by_step_equals_parallel(length):
    q, k, v, _ = inputs(2, length)
    parallel, final = norm_attention(q, k, v, causal=True, return_state=True)
    state, steps = None, []
    for t in range(length):
        one = slice(t, t + 1)
        out, state = norm_attention(q[:, one], k[:, one], v[:, one], causal=True, state=state, return_state=True)
        steps.append(out)
    torch.testing.assert_close(torch.cat(steps, dim=1), parallel, atol=1e-10, rtol=1e-12)
    torch.testing.assert_close(state, final, atol=1e-10, rtol=1e-12)


def test_two_halves_with_a_carried_state_equal_the_whole():
    q, k, v, _ = inputs(2, 150)
    whole = norm_attention(q, k, v, causal=True)
    first, state = norm_attention(q[:, :97], k[:, :97], v[:, :97], causal=True, return_state=True)
    second = norm_attention(q[:, 97:], k[:, 97:], v[:, 97:], causal=True, state=state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole, atol=1e-10, rtol=1e-12)


def test_any_strides():
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs(2, 130)[:3])
    assert not q.is_contiguous()
    torch.testing.assert_close(
        norm_attention(q, k, v, causal=True),
        norm_attention(q.contiguous(), k.contiguous(), v.contiguous(), causal=True),
        atol=1e-12,
        rtol=1e-12,
    )


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_accumulates_in_float32(dtype, autocast, causal):
    """A bfloat16 sum (8 bits) cannot hold 4095: it would come out as 4096, or stop counting at 256."""
    length = 4095
    ones = torch.ones(1, length, 1, 1, dtype=dtype)
    with torch.autocast("cpu", dtype=dtype, enabled=autocast):
        _, state = norm_attention(ones, ones, ones, causal=causal, feature_map="identity", return_state=True)
        _, state = norm_attention(
            *[ones[:, :1]] * 3, causal=True, feature_map="identity", state=state, return_state=True
        )
    assert state.dtype == torch.float32
    assert state.item() == length + 1
    last = norm_attention(ones, ones, ones, causal=causal, feature_map="identity")[0, -1]
    assert last.item() == (4096 if dtype == torch.bfloat16 else length)  # float16 is returned as float32


@pytest.mark.parametrize("causal", [True, False])
def test_partial_sums_are_not_rounded_either(causal):
    """With a two among the ones each of them is odd; without, they are multiples of 64, which bfloat16 can hold."""
    ones = torch.ones(1, 4095, 1, 1, dtype=torch.bfloat16)
    values = ones.clone()
    values[:, 0] = 2
    _, state = norm_attention(ones, ones, values, causal=causal, feature_map="identity", return_state=True)
    assert state.item() == 4096


def test_a_wrong_call_says_what_is_wrong():
    q, k, v, state = inputs(2, 10)
    with pytest.raises(ConfigError, match="did you mean '1\\+elu'"):
        norm_attention(q, k, v, causal=True, feature_map="1elu")
    with pytest.raises(ConfigError, match=r"state must be \[B, H, D, E\] = \[2, 2, 8, 8\], got \[1, 2, 8, 8\]"):
        norm_attention(q, k, v, causal=True, state=state[:1])
    with pytest.raises(ConfigError, match="k must be of the shape of q") as length:
        norm_attention(q, k[:, :5], v, causal=True)
    assert "different length" in length.value.hint
    with pytest.raises(ConfigError, match=r"v must be \[2, 10, 2\] \+ \[E\], got \[2, 10, 1, 8\]") as heads:
        norm_attention(q, k, v[:, :, :1], causal=True)
    assert "every head has its own keys and values" in heads.value.hint
    with pytest.raises(ConfigError, match="k must be of the shape of q") as size:
        norm_attention(q, k[..., :4], v, causal=True)
    assert "one head size" in size.value.hint
    with pytest.raises(ConfigError, match=r"mask must be \[B, T\]"):
        norm_attention(q, k, v, causal=True, mask=torch.ones(2, 9))
    with pytest.raises(ConfigError, match="one dtype"):
        norm_attention(q, k.float(), v, causal=True)
    with pytest.raises(ConfigError, match=r"must be \[B, T, H, D\]"):
        norm_attention(q[0], k, v, causal=True)
    with pytest.raises(ConfigError, match="there must be a head, with a column"):
        norm_attention(q, k, v[..., :0], causal=True)
