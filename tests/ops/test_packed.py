"""Packed sequences: what separate calls give, with states and all gradients, in every implementation."""

from __future__ import annotations

import os
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import relative
from torch import Tensor

from transnormer.errors import ConfigError
from transnormer.ops import diag_attention, norm_attention
from transnormer.ops.diag_attention.reference import diag_attention_reference
from transnormer.ops.norm_attention.reference import norm_attention_reference
from transnormer.ops.packed import PackedBounds, most_parts, packed_bounds

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
on_the_cpu = pytest.mark.skipif(INTERPRETED, reason="this is the process for kernels")
with_kernels = pytest.mark.gpu if not INTERPRETED else pytest.mark.usefixtures("poisoned_empty")


def inputs(lengths: list[int], d: int = 8, e: int = 6, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """q, k, v, a state for each sequence, and cu_seqlens."""
    generator = torch.Generator().manual_seed(sum(lengths))
    total = sum(lengths)
    shapes = [(1, total, 2, d), (1, total, 2, d), (1, total, 2, e), (len(lengths), 2, d, e)]
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
    return [*tensors, torch.tensor([0, *lengths]).cumsum(0)]


def with_gradients(op, q: Tensor, k: Tensor, v: Tensor, state: Tensor | None) -> list[Tensor]:
    """Outputs, and the gradients of a fixed combination of them."""
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v, *([] if state is None else [state]))]
    outputs = op(*leaves) if state is not None else op(*leaves, None)
    loss = sum(
        (out.double() * torch.linspace(-1, 1, out.numel()).view(out.shape).to(out.device)).sum() for out in outputs
    )
    return [*(out.detach() for out in outputs), *torch.autograd.grad(loss, leaves)]


def norm_packed(q, k, v, state, *, cu_seqlens, function=norm_attention, **options):
    extra = {"return_state": True} if function is norm_attention else {}
    return function(q, k, v, state=state, cu_seqlens=cu_seqlens, **extra, **options)


def norm_apart(q, k, v, state, *, cu_seqlens, **options):
    bounds = list(zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True))
    results = [
        norm_attention(
            *(x[:, a:b] for x in (q, k, v)),
            state=None if state is None else state[n : n + 1],
            return_state=True,
            **options,
        )
        for n, (a, b) in enumerate(bounds)
    ]
    return torch.cat([out for out, _ in results], dim=1), torch.cat([new for _, new in results])


def diag_packed(q, k, v, state, *, cu_seqlens, function=diag_attention, **options):
    return (function(q, k, v, cu_seqlens=cu_seqlens, **options),)


def diag_apart(q, k, v, state, *, cu_seqlens, **options):
    bounds = list(zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True))
    return (torch.cat([diag_attention(*(x[:, a:b] for x in (q, k, v)), **options) for a, b in bounds], dim=1),)


LENGTHS = st.lists(st.sampled_from([1, 1, 2, 5, 16, 63, 64, 65, 130]), min_size=1, max_size=6)


@on_the_cpu
@settings(max_examples=30, deadline=None)
@given(lengths=LENGTHS, causal=st.booleans(), carried=st.booleans(), dtype=st.sampled_from([torch.int32, torch.int64]))
def test_norm_attention_equals_separate_calls(lengths, causal, carried, dtype):
    q, k, v, state, cu_seqlens = inputs(lengths)
    state = state if carried else None
    options = {"causal": causal, "feature_map": "1+elu"}
    apart = with_gradients(partial(norm_apart, cu_seqlens=cu_seqlens, **options), q, k, v, state)
    for function in (norm_attention, norm_attention_reference):
        packed = partial(norm_packed, cu_seqlens=cu_seqlens.to(dtype), function=function, **options)
        for ours, theirs in zip(with_gradients(packed, q, k, v, state), apart, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)


@on_the_cpu
@settings(max_examples=30, deadline=None)
@given(lengths=LENGTHS, causal=st.booleans(), kind=st.sampled_from(["softmax", "rela"]), block=st.sampled_from([4, 64]))
def test_diag_attention_equals_separate_calls(lengths, causal, kind, block):
    q, k, v, _, cu_seqlens = inputs(lengths)
    options = {"causal": causal, "kind": kind, "block_size": block}
    apart = with_gradients(partial(diag_apart, cu_seqlens=cu_seqlens, **options), q, k, v, None)
    for function in (diag_attention, diag_attention_reference):
        packed = partial(diag_packed, cu_seqlens=cu_seqlens, function=function, **options)
        for ours, theirs in zip(with_gradients(packed, q, k, v, None), apart, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)


@on_the_cpu
@settings(max_examples=200, deadline=None)
@given(lengths=LENGTHS, size=st.sampled_from([1, 4, 64, 100]))
def test_parts_are_counted_and_have_enough_slots(lengths, size):
    bounds = packed_bounds(torch.tensor([0, *lengths]).cumsum(0), torch.empty(1, sum(lengths)))
    begins, before, tokens = bounds.cut(size, 1)
    assert bounds.longest == max(lengths)
    parts = [-(-length // size) for length in lengths]
    assert before.diff().tolist() == parts
    assert begins.tolist() == tokens.tolist() == bounds.cu_seqlens.tolist()
    assert before[0] == 0
    assert sum(parts) <= most_parts(bounds.cut(size), sum(lengths), size)
    assert bounds.cut(size) is bounds.cut(size)


def bounds_of(cu_seqlens: Tensor, known: bool) -> PackedBounds:
    """Bounds with the length of the longest sequence, or without it, as they are read from a GPU."""
    length = int(cu_seqlens[-1])
    return PackedBounds(cu_seqlens, length, longest=int(cu_seqlens.diff().max()) if known else None)


# Few pairs of sequence and head are cut into parts of time, many are not.
SPLITS = [[1, 70, 1, 1, 5, 300], [130], [64, 64], [17] * 3]


@with_kernels
@pytest.mark.parametrize(("lengths", "d"), [*((lengths, 8) for lengths in SPLITS), (SPLITS[0], 72)], ids=str)
@pytest.mark.parametrize(("causal", "carried"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("known", [True, False], ids=["longest known", "longest unknown"])
def test_norm_kernels_equal_separate_calls(lengths, d, causal, carried, known):
    """Of narrow heads, and of wide ones, which have kernels of their own."""
    # A GPU has no registers for float32 tiles of wide heads.
    dtype, bound = (torch.bfloat16, 2e-2) if d > 64 and not INTERPRETED else (torch.float32, 1e-3)
    q, k, v, state, cu_seqlens = (x.to(DEVICE) for x in inputs(lengths, d=d))
    q, k, v, state = q.to(dtype), k.to(dtype), v.to(dtype), state.float() if carried else None
    call = {"causal": causal, "cu_seqlens": cu_seqlens}
    bounds = bounds_of(cu_seqlens, known)
    kernel = with_gradients(partial(norm_packed, backend="triton", causal=causal, cu_seqlens=bounds), q, k, v, state)
    wide = [None if x is None else x.double() for x in (q, k, v, state)]
    for ours, theirs in zip(kernel, with_gradients(partial(norm_apart, **call), *wide), strict=True):
        assert relative(ours.double() - theirs, theirs) < bound


@with_kernels
@pytest.mark.parametrize(("causal", "carried"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("segments", [1, 4])
@pytest.mark.parametrize("known", [True, False], ids=["longest known", "longest unknown"])
def test_norm_kernels_find_the_states_between_segments(causal, carried, segments, known, monkeypatch):
    """Sequences of one segment, of several whole ones, and of one more token, in slots of which some are empty."""
    from transnormer.ops.norm_attention import kernel_plan

    monkeypatch.setattr(kernel_plan, "wanted_segments", lambda *_, **__: segments)
    monkeypatch.setattr(kernel_plan, "_SHORTEST_UNCUT", 64)
    monkeypatch.setattr(kernel_plan, "_LONGEST_UNDONE", 128)
    q, k, v, state, cu_seqlens = (x.to(DEVICE) for x in inputs([300, 1, 128, 65, 129, 256], dtype=torch.float32))
    state = state if carried else None
    call = {"causal": causal, "cu_seqlens": cu_seqlens}
    bounds = bounds_of(cu_seqlens, known)
    kernel = with_gradients(partial(norm_packed, backend="triton", causal=causal, cu_seqlens=bounds), q, k, v, state)
    wide = [None if x is None else x.double() for x in (q, k, v, state)]
    for ours, theirs in zip(kernel, with_gradients(partial(norm_apart, **call), *wide), strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=5e-3, rtol=1e-3)


@with_kernels
@pytest.mark.parametrize("lengths", SPLITS, ids=str)
@pytest.mark.parametrize(("causal", "kind"), [(True, "softmax"), (False, "softmax"), (True, "rela")])
def test_diag_kernels_equal_separate_calls(lengths, causal, kind):
    q, k, v, _, cu_seqlens = (x.to(DEVICE) for x in inputs(lengths, dtype=torch.float32))
    call = {"causal": causal, "kind": kind, "block_size": 16, "cu_seqlens": cu_seqlens}
    kernel = with_gradients(partial(diag_packed, backend="triton", **call), q, k, v, None)
    exact = with_gradients(partial(diag_apart, **call), *(x.double() for x in (q, k, v)), None)
    for ours, theirs in zip(kernel, exact, strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        out, sums = diag_attention(q, k, v, return_square_sums=True, backend="triton", **call)
    torch.testing.assert_close(sums, out.square().sum(-1), atol=1e-5, rtol=1e-4)


@with_kernels
@pytest.mark.parametrize("causal", [True, False])
def test_square_sums_of_packed_sequences(causal):
    q, k, v, _, cu_seqlens = (x.to(DEVICE) for x in inputs([3, 20, 140, 1], dtype=torch.float32))
    call = {"causal": causal, "cu_seqlens": cu_seqlens, "return_square_sums": True, "backend": "triton"}
    with torch.no_grad():
        out, sums = norm_attention(q, k, v, **call)
    torch.testing.assert_close(sums, out.square().sum(-1))


@on_the_cpu
@pytest.mark.parametrize("op", [norm_attention, diag_attention])
@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([1, 4, 10], r"cu_seqlens must start at 0, got \[1, 4, 10\]"),
        ([0, 4, 9], r"cu_seqlens must end at T = 10, got \[0, 4, 9\]"),
        ([0, 4, 4, 10], "cu_seqlens must increase"),
        ([0, 12, 10], "cu_seqlens must increase"),
        ([0], r"\[N \+ 1\] with N ≥ 1"),
        ([0.0, 10.0], "int32 or int64, got torch.float32"),
    ],
)
def test_wrong_cu_seqlens_are_refused(op, values, wanted):
    q = torch.randn(1, 10, 2, 8)
    with pytest.raises(ConfigError, match=wanted):
        op(q, q, q, causal=True, cu_seqlens=torch.tensor(values))


@on_the_cpu
def test_bounds_are_of_one_row():
    q, cu_seqlens = torch.randn(1, 10, 2, 8), torch.tensor([0, 4, 10])
    bounds = packed_bounds(cu_seqlens, q, longest=8)
    assert (bounds.length, bounds.longest) == (10, 6)
    with pytest.raises(ConfigError, match="a sequence of 6 tokens, and the longest is said to have 5"):
        packed_bounds(cu_seqlens, q, longest=5)
    with pytest.raises(ConfigError, match="these bounds are of a row of 10 tokens, and T is 9"):
        norm_attention(q[:, :9], q[:, :9], q[:, :9], causal=True, cu_seqlens=bounds)


@with_kernels
def test_where_the_longest_is_known_short_sequences_are_one_segment():
    from transnormer.ops.norm_attention import kernel

    q = torch.zeros(1, 2000, 8, 64, device=DEVICE)
    cu_seqlens = torch.arange(0, 2001, 50, device=DEVICE)
    for bounds, rows in ((bounds_of(cu_seqlens, True), 1), (bounds_of(cu_seqlens, False), 2)):
        assert kernel.bounds_of(q, q, True, bounds).shape == (rows, 41)
        assert kernel.bounds_of(q, q, False, bounds).shape == (3, 41)


@on_the_cpu
@pytest.mark.parametrize("op", [norm_attention, diag_attention])
def test_what_cannot_be_packed_is_refused(op):
    q, cu_seqlens = torch.randn(2, 10, 2, 8), torch.tensor([0, 10])
    with pytest.raises(ConfigError, match="all sequences are one row, but B is 2"):
        op(q, q, q, causal=True, cu_seqlens=cu_seqlens)
    with pytest.raises(ConfigError, match="cu_seqlens and mask exclude each other"):
        op(q[:1], q[:1], q[:1], causal=True, cu_seqlens=cu_seqlens, mask=torch.ones(1, 10).bool())
    with pytest.raises(ConfigError, match="must be a tensor of int32 or int64, got list"):
        op(q[:1], q[:1], q[:1], causal=True, cu_seqlens=[0, 10])
    with pytest.raises(ConfigError, match=r"state must be \[B, H, D, E\] = \[1, 2, 8, 8\]"):
        norm_attention(q[:1], q[:1], q[:1], causal=True, cu_seqlens=cu_seqlens, state=torch.zeros(2, 2, 8, 8))
