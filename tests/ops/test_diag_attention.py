"""diag_attention against its definition, SDPA under an explicit block mask, and the `local-attention` package."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from transnormer.errors import ConfigError
from transnormer.ops import diag_attention
from transnormer.ops.diag_attention.reference import diag_attention_reference
from transnormer.ops.diag_attention.step import diag_attention_step

pytestmark = pytest.mark.usefixtures("poisoned_empty")


def inputs(batch, length, heads=2, d=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, length, heads, d, generator=generator, dtype=torch.float64) for _ in range(3)]


@settings(max_examples=80, deadline=None)
@given(
    batch=st.integers(1, 3),
    length=st.sampled_from([1, 2, 5, 15, 16, 17, 63, 64, 65, 130]),
    block_size=st.sampled_from([1, 2, 16, 64, 100]),
    kind=st.sampled_from(["softmax", "rela"]),
    causal=st.booleans(),
    masked=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_every_path_equals_the_reference(batch, length, block_size, kind, causal, masked, seed):
    q, k, v = inputs(batch, length, seed=seed)
    mask = torch.rand(batch, length, generator=torch.Generator().manual_seed(seed)) < 0.6 if masked else None
    options = {"causal": causal, "block_size": block_size, "kind": kind, "mask": mask}
    expected = diag_attention_reference(q, k, v, **options)
    torch.testing.assert_close(diag_attention(q, k, v, **options), expected, atol=1e-10, rtol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", ["softmax", "rela"])
@pytest.mark.parametrize("masked", [True, False])
def test_gradients(causal, kind, masked):
    q, k, v = (x.requires_grad_() for x in inputs(2, 7, d=3))
    mask = None
    if masked:
        mask = torch.tensor([[1, 1, 0, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 1]])

    def op(q, k, v):
        return diag_attention(q, k, v, causal=causal, block_size=4, kind=kind, mask=mask)

    assert torch.autograd.gradcheck(op, (q, k, v))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [128, 200])
def test_equals_sdpa_under_an_explicit_block_mask(causal, length):
    q, k, v = inputs(2, length)
    position = torch.arange(length)
    visible = position[:, None] // 64 == position // 64
    if causal:
        visible = visible & (position[:, None] >= position)
    expected = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), attn_mask=visible)
    out = diag_attention(q, k, v, causal=causal)
    torch.testing.assert_close(out, expected.transpose(1, 2), atol=1e-10, rtol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_equals_the_local_attention_package(causal):
    local_attention = pytest.importorskip("local_attention")
    q, k, v = inputs(2, 192)
    oracle = local_attention.LocalAttention(
        window_size=64,
        causal=causal,
        look_backward=0,
        look_forward=0,
        use_rotary_pos_emb=False,
        autopad=True,
        exact_windowsize=False,
    )
    expected = oracle(*(x.transpose(1, 2) for x in (q, k, v)))
    out = diag_attention(q, k, v, causal=causal)
    torch.testing.assert_close(out, expected.transpose(1, 2), atol=1e-10, rtol=1e-12)


@pytest.mark.parametrize("kind", ["softmax", "rela"])
def test_a_token_changes_nothing_outside_its_block_bit_for_bit(kind):
    q, k, v = inputs(1, 200)
    before = diag_attention(q, k, v, causal=True, kind=kind)
    k2, v2 = k.clone(), v.clone()
    k2[:, 100] += 1
    v2[:, 100] += 1
    changed = (diag_attention(q, k2, v2, causal=True, kind=kind) != before).any(dim=(0, 2, 3))
    assert set(changed.nonzero().flatten().tolist()) <= set(range(100, 128))
    assert changed[100:128].any()


@pytest.mark.parametrize("kind", ["softmax", "rela"])
@pytest.mark.parametrize("length", [1, 63, 64, 65, 200])
def test_step_by_step_equals_parallel(kind, length):
    q, k, v = inputs(2, length)
    parallel = diag_attention(q, k, v, causal=True, kind=kind)
    steps = []
    for t in range(length):
        past = slice(max(0, t - 63), t + 1)
        positions = torch.arange(past.start, past.stop).expand(2, -1)
        steps.append(
            diag_attention_step(
                q[:, t : t + 1],
                k[:, past],
                v[:, past],
                query_positions=torch.full((2, 1), t),
                key_positions=positions,
                kind=kind,
            )
        )
    torch.testing.assert_close(torch.cat(steps, dim=1), parallel, atol=1e-10, rtol=1e-12)


def test_dropout_drops_and_keeps_the_mean():
    q, k, v = inputs(8, 64)
    torch.manual_seed(0)
    for kind in ("softmax", "rela"):
        plain = diag_attention(q, k, v, causal=False, kind=kind)
        dropped = torch.stack([diag_attention(q, k, v, causal=False, kind=kind, dropout_p=0.5) for _ in range(200)])
        assert not torch.equal(dropped[0], dropped[1])
        assert (dropped.mean(0) - plain).abs().mean() < 0.15 * plain.abs().mean()


def test_a_wrong_call_says_what_is_wrong():
    q, k, v = inputs(2, 10)
    with pytest.raises(ConfigError, match="did you mean 'softmax'"):
        diag_attention(q, k, v, causal=True, kind="softmx")
    with pytest.raises(ConfigError, match="block_size"):
        diag_attention(q, k, v, causal=True, block_size=0)
    for probability in (-0.1, 1.0, float("nan")):
        with pytest.raises(ConfigError, match="diag_attention: dropout_p must be at least 0 and below 1"):
            diag_attention(q, k, v, causal=True, dropout_p=probability)
    for none in (q[:, :, :0], q[..., :0]):
        with pytest.raises(ConfigError, match="diag_attention: there must be a head, with a column"):
            diag_attention(none, none, none, causal=True)
