"""Triton kernels against PyTorch in the same dtype and the definition in float64; interpreted where there is no GPU."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

import pytest
import torch
from kernel_cases import check_kernel, outputs_and_gradients, relative
from kernel_choices import (
    DIAG_INTERPRETED,
    DIAG_ON_A_GPU,
    NORM_INTERPRETED,
    NORM_ON_A_GPU,
    RMS_INTERPRETED,
    RMS_ON_A_GPU,
    parameters,
)

from transnormer.errors import ConfigError
from transnormer.ops import diag_attention, norm_attention, norm_decode_step, rms_norm
from transnormer.ops.backend import explain
from transnormer.ops.diag_attention.reference import diag_attention_reference
from transnormer.ops.norm_attention.reference import norm_attention_reference
from transnormer.ops.packed import packed_bounds
from transnormer.ops.rms_norm.reference import rms_norm_reference

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
# The interpreter computes with numpy, which has no bfloat16: float16 stands in for it.
HALF = torch.float16 if INTERPRETED else torch.bfloat16

pytest.importorskip("triton", reason="triton is not installed")
here = pytest.mark.gpu if not INTERPRETED else pytest.mark.usefixtures("poisoned_empty")


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(DEVICE, dtype) for shape in shapes]


def some_mask(batch: int, length: int) -> torch.Tensor:
    return (torch.rand(batch, length, generator=torch.Generator().manual_seed(5)) < 0.7).to(DEVICE)


def with_square_sums(reference):
    """A reference that also returns the sums of squares of its output."""

    def call(*inputs, **options):
        results = reference(*inputs, **options)
        results = results if isinstance(results, tuple) else (results,)
        return (*results, results[0].square().sum(-1))

    return call


def check(op, reference, inputs, squared, **options):
    """Outputs and all gradients; then the sums of squares, which are computed where nothing is differentiated."""
    ours = partial(op, **options)
    check_kernel(partial(ours, backend="triton"), partial(ours, backend="torch"), partial(reference, **options), inputs)
    if squared:
        ours = partial(ours, return_square_sums=True)
        exact = partial(with_square_sums(reference), **options)
        check_kernel(partial(ours, backend="triton"), partial(ours, backend="torch"), exact, inputs, gradients=False)


@here
@pytest.mark.parametrize("case", parameters(NORM_INTERPRETED if INTERPRETED else NORM_ON_A_GPU))
def test_norm_attention(case, monkeypatch):
    """Outputs and all gradients; what the cases cover is written in kernel_choices.py."""
    from transnormer.ops.norm_attention import kernel_plan

    # At most a dozen programs, so that segments are more than a chunk long.
    def wanted(pairs, *_, **__):
        return -(-12 // pairs) if case.many_segments else 1

    monkeypatch.setattr(kernel_plan, "wanted_segments", wanted)
    if case.short_segments:
        monkeypatch.setattr(kernel_plan, "_LONGEST_UNDONE", 128)
    monkeypatch.setattr(kernel_plan, "_AT_ONCE", 0 if case.limited else 10**9)
    d, e = case.d, case.e or case.d
    for batch, length, heads in case.shapes:
        inputs = tensors(*[(batch, length, heads, size) for size in (d, d, e)], dtype=case.dtype)
        if case.carried:
            inputs += tensors((batch, heads, d, e), dtype=torch.float32, seed=1)
        options = {"causal": case.causal, "feature_map": case.feature_map}
        options["mask"] = some_mask(batch, length) if case.masked else None

        def ours(q, k, v, state=None, case=case, **options):
            return norm_attention(q, k, v, state=state, return_state=case.carried, **options)

        # Walks start at zero where no state is carried: the forward without one before, the backward without a
        # gradient of the one after.
        def reference(q, k, v, state=None, case=case, **options):
            out, state = norm_attention_reference(q, k, v, state=state, **options)
            return (out, state) if case.carried else out

        check(ours, reference, inputs, case.squared, **options)


@pytest.mark.gpu
def test_the_first_tokens_of_a_long_sequence_keep_their_gradient():
    """The state is undone from the end on, and values with a mean make it large: what is left of it is not noise.

    The gradient of a query depends on what comes before it only, so a short sequence has the same.
    """
    q, k, v, do = tensors(*[(12, 8192, 8, 64)] * 4, dtype=HALF)
    v += 1

    def dq(*inputs):
        q, *others, gradient = (x.detach() for x in inputs)
        q.requires_grad_()
        return torch.autograd.grad(norm_attention(q, *others, causal=True), q, gradient)[0]

    exact = dq(*(x[:, :8].double() for x in (q, k, v, do)))
    assert relative(dq(q, k, v, do)[:, :8] - exact, exact) < 1e-2


@pytest.mark.parametrize(
    ("batch", "length", "heads", "d", "segment"),
    [
        (64, 512, 8, 64, 512),
        (16, 2048, 8, 64, 2048),
        (4, 8192, 8, 64, 1024),
        (1, 32768, 8, 64, 1024),
        (16, 8192, 8, 64, 4096),
        (1, 2**20, 8, 64, 4096),
        (32, 8192, 8, 128, 8192),
        (16, 1024, 2, 32, 128),
        (4, 8192, 16, 128, 1024),
        (1, 1000, 3, 96, 128),
        (2, 70, 2, 128, 128),
    ],
)
def test_time_is_cut_where_heads_are_few(batch, length, heads, d, segment):
    """Into segments that are whole chunks of either direction, as many of the one as of the other."""
    from transnormer.ops.norm_attention.kernel_plan import Plan

    q = torch.empty((batch, length, heads, d), device="meta")
    plan = Plan(q, q, None, True, 0)
    assert plan.segment == segment
    for chunk in (plan.chunk, plan.forward_chunk):
        *_, chunks_per_segment = plan.scan(chunk)
        assert chunks_per_segment * chunk == segment
    assert plan.segments == -(-length // segment)


@pytest.mark.parametrize(
    ("sequences", "length", "heads", "d", "segment"),
    [
        (64, 512, 8, 64, 1024),
        (16, 2048, 8, 64, 1024),
        (16, 200, 8, 64, 512),
        (500, 60, 8, 64, 512),
        (4, 8192, 8, 64, 1024),
        (16, 8192, 8, 64, 4096),
        (1, 100_000, 8, 64, 4096),
        (32, 8192, 8, 128, 16_384),
        (2, 70, 2, 128, 128),
    ],
)
def test_packed_sequences_are_cut_as_if_all_were_as_long(sequences, length, heads, d, segment):
    """What that is decides, not the lengths themselves, which are on the device."""
    from transnormer.ops.norm_attention.kernel_plan import Plan

    q = torch.empty((1, sequences * length, heads, d), device="meta")
    plan = Plan(q, q, None, True, 0, torch.empty(2, sequences + 1, dtype=torch.int32, device="meta"))
    assert plan.cuts == (segment,)
    assert plan.segments == sequences * length // segment + sequences
    assert plan.grid() == (plan.segments * heads, 1, 1)


def test_what_is_not_differentiated_is_cut_less():
    """Packed: a cut is a pass more, which only the backward is worth. Without knowing the longest there is one."""
    from transnormer.ops.norm_attention.kernel import bounds_of

    q = torch.empty((1, 16 * 2048, 8, 64))
    bounds = packed_bounds(torch.arange(0, q.shape[1] + 1, 2048), q)
    in_two = [*range(0, 33, 2)]
    assert bounds_of(q, q, True, bounds)[1].tolist() == in_two
    with torch.no_grad():
        assert len(bounds_of(q, q, True, bounds)) == 1
        assert bounds_of(q, q, True, replace(bounds, longest=None))[1].tolist() == in_two


@pytest.mark.parametrize("length", [1, 64, 4096, 4097, 8192, 10_000, 100_000])
def test_parts_that_take_turns_hold_every_token_once_and_share_their_borders(length):
    """In the chunks, segments and offsets that the kernels are told."""
    from transnormer.ops.norm_attention.kernel_plan import Plan

    q = torch.empty((64, length, 8, 64), device="meta")
    plan = Plan(q, q, None, True, 0)
    seen, boundary = 0, 0
    for step in plan.launches():
        *_, chunks_of_a_segment = plan.scan(plan.chunk, step.tokens)
        assert step.segment * chunks_of_a_segment == seen
        assert step.offset + step.segment == boundary
        seen, boundary = min((step.segment + 1) * chunks_of_a_segment, -(-length // plan.chunk)), boundary + 1
    assert seen == -(-length // plan.chunk)
    assert boundary == plan.segments
    assert plan.grid()[0] == 1


@here
@pytest.mark.parametrize("op", [norm_attention, diag_attention])
@pytest.mark.parametrize("causal", [True, False])
def test_a_batch_without_texts_gives_one_back(op, causal):
    inputs = [x.requires_grad_() for x in tensors(*[(0, 70, 2, 16)] * 3, dtype=HALF)]
    out = op(*inputs, causal=causal, backend="triton")
    assert out.shape == (0, 70, 2, 16)
    out.sum().backward()
    assert [x.grad.shape for x in inputs] == [out.shape] * 3


@pytest.mark.parametrize("op", ["norm_attention", "diag_attention", "rotate", "random_features"])
def test_more_texts_than_a_grid_has_room_for_are_left_to_pytorch(op):
    q = torch.empty((2**16, 1, 1, 16), dtype=torch.float16, device="meta")
    choice = explain(op, "cuda", q=q, k=q, v=q, x=q, weight=q[0, 0], causal=True)
    assert choice.backend == "torch"
    assert "65,536 sequences" in choice.reason


@here
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("d", "e"), [(160, 144), (256, 64), (32, 256)])
def test_heads_wider_than_a_tile(causal, d, e):
    """In blocks of features, which add up, and of columns, which stand alone; with the state and everything else."""
    dtype = torch.float32 if INTERPRETED else torch.bfloat16
    inputs = tensors(*[(2, 70, 1, size) for size in (d, d, e)], dtype=dtype)
    inputs += tensors((2, 1, d, e), dtype=torch.float32, seed=1)
    options = {"causal": causal, "feature_map": "1+elu", "mask": some_mask(2, 70)}

    def call(op, q, k, v, state):
        return op(q, k, v, state=state, **options)

    ours = partial(norm_attention, return_state=True, return_square_sums=True)

    def exact(q, k, v, state):
        out, memory = norm_attention_reference(q, k, v, state=state, **options)
        return out, memory, out.square().sum(-1)

    check_kernel(
        partial(call, partial(ours, backend="triton")), partial(call, partial(ours, backend="torch")), exact, inputs
    )


@here
@pytest.mark.parametrize("case", parameters(DIAG_INTERPRETED if INTERPRETED else DIAG_ON_A_GPU))
def test_diag_attention(case):
    """Output and all gradients; what the cases cover is written in kernel_choices.py."""
    for batch, length, heads in case.shapes:
        options = {"causal": case.causal, "block_size": case.block_size, "kind": case.kind}
        options["mask"] = some_mask(batch, length) if case.masked else None
        inputs = tensors(
            *[(batch, length, heads, size) for size in (case.d, case.d, case.e or case.d)], dtype=case.dtype
        )
        check(diag_attention, diag_attention_reference, inputs, case.squared, **options)


@here
@pytest.mark.parametrize(("shape", "gain", "dtype"), RMS_INTERPRETED if INTERPRETED else RMS_ON_A_GPU)
def test_rms_norm(shape, gain, dtype):
    inputs = tensors(shape, *([shape[-1:]] if gain else []), dtype=dtype)
    check_kernel(partial(rms_norm, backend="triton"), partial(rms_norm, backend="torch"), rms_norm_reference, inputs)


@here
@pytest.mark.parametrize("gain", [True, False])
def test_rms_norm_rounds_to_another_dtype(gain):
    """float32 rows in front of a product in half precision: rounded once; the gradient is float32 as its input."""
    rounded = torch.float16 if INTERPRETED else torch.bfloat16  # the interpreter cuts bfloat16 off
    inputs = tensors((70, 48), *([(48,)] if gain else []), dtype=torch.float32)
    ours = outputs_and_gradients(partial(rms_norm, backend="triton", dtype=rounded), inputs, seed=1)
    exact = outputs_and_gradients(rms_norm_reference, [x.double() for x in inputs], seed=1)
    assert [x.dtype for x in ours] == [rounded, *[torch.float32] * len(inputs)]
    for found, expected in zip(ours, exact, strict=True):
        assert relative(found.double() - expected, expected) < torch.finfo(rounded).eps


@here
def test_strided_views_need_no_copies():
    """q, k and v as views of one packed projection, and heads before time, give what contiguous tensors give."""
    (packed,) = tensors((2, 70, 3, 2, 16), dtype=torch.float32)
    views = packed.unbind(2)
    copies = [x.contiguous() for x in views]
    heads_first = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in views]
    for op in (partial(norm_attention, causal=True), partial(diag_attention, causal=True)):
        expected = op(*copies, backend="triton")
        assert torch.equal(op(*views, backend="triton"), expected)
        assert torch.equal(op(*heads_first, backend="triton"), expected)


def test_rows_beyond_32_bits_are_copied():
    from transnormer.ops.kernels.launch import near_rows

    near, far = (torch.empty_strided((2, 64, 1, 16), (16, row, 16, 1), device="meta") for row in (32, 2**24))
    assert near_rows(near) is near
    assert near_rows(far).is_contiguous()


@here
def test_a_number_that_is_none_stays_none():
    """A maximum with zero would hide it, in ReLU attention's weights."""
    for name in "qk":
        inputs = dict(zip("qkv", tensors(*[(1, 20, 1, 16)] * 3, dtype=HALF), strict=True))
        inputs[name][0, 7] = torch.nan
        found, plain = (diag_attention(**inputs, causal=True, kind="rela", backend=b) for b in ("triton", "torch"))
        assert torch.equal(found.isnan().any(dim=-1), plain.isnan().any(dim=-1))
        assert found.isnan().any()


def test_long_blocks_of_wide_heads_are_left_to_pytorch():
    def choice(d: int, e: int, block_size: int):
        q, v = (torch.empty((1, 256, 1, size), dtype=torch.bfloat16, device="meta") for size in (d, e))
        return explain("diag_attention", "cuda", q=q, k=q, v=v, block_size=block_size)

    assert "does not fit shared memory" in choice(160, 160, 100).reason
    assert [choice(*fits).backend for fits in ((128, 128, 128), (256, 256, 64))] == ["triton"] * 2


@here
@pytest.mark.parametrize("op", ["rms_norm", "decode_step"])
def test_small_vectors_may_lie_apart(op):
    (vector,) = tensors((16, 2), dtype=torch.float32)
    apart, together = vector[:, 0], vector[:, 0].contiguous()
    x, q, k, v, memory = tensors((3, 16), *[(2, 1, 3, 32)] * 3, (2, 3, 32, 32), dtype=torch.float32)
    positions = torch.tensor([4, 9], device=DEVICE)

    def call(vector):
        if op == "rms_norm":
            return rms_norm(x, vector, backend="triton")
        return norm_decode_step(
            q, k, v, memory.clone(), positions=positions, inverse_frequencies=vector, backend="triton"
        )

    assert torch.equal(call(apart), call(together))


@here
def test_a_compiler_needs_few_graphs_for_many_lengths():
    """It gives up after eight; each length by itself would be one."""
    torch.compiler.reset()
    attend = torch.compile(partial(norm_attention, causal=True, backend="triton"), fullgraph=True, backend="aot_eager")
    for length in range(20, 200, 17):
        q, k, v = tensors(*[(1, length, 1, 16)] * 3, dtype=torch.float32)
        torch.testing.assert_close(attend(q, k, v), norm_attention(q, k, v, causal=True, backend="triton"))
    torch.compiler.reset()


@here
def test_the_same_inputs_give_the_same_bits():
    q, k, v = tensors(*[(2, 200, 2, 32)] * 3, dtype=HALF)
    for op in (partial(norm_attention, causal=True), partial(diag_attention, causal=True, kind="rela")):
        runs = []
        for _ in range(2):
            inputs = [x.clone().requires_grad_() for x in (q, k, v)]
            op(*inputs, backend="triton").float().tanh().sum().backward()
            runs.append([x.grad for x in inputs])
        assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@here
def test_what_a_kernel_cannot_serve_is_an_error_with_the_reason():
    q, k, v = tensors(*[(1, 8, 1, 16)] * 3, dtype=torch.float32)
    with pytest.raises(ConfigError, match="float64"):
        norm_attention(q.double(), k.double(), v.double(), causal=True, backend="triton")
    with pytest.raises(ConfigError, match="head size 512"):
        diag_attention(*tensors(*[(1, 8, 1, 512)] * 3, dtype=torch.float32), causal=True, backend="triton")
    with pytest.raises(ConfigError, match="block_size 256"):
        diag_attention(q, k, v, causal=True, block_size=256, backend="triton")
