"""rotate against complex numbers: both paths, every gradient, and the kernel in Triton's interpreter."""

from __future__ import annotations

import os
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import check_kernel, outputs_and_gradients

from transnormer.errors import ConfigError
from transnormer.mixers.components.positions import Rotation, rope_inverse_frequencies
from transnormer.ops import norm_attention, rotate
from transnormer.ops.rotate.reference import rotate_reference

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
# The interpreter computes with numpy, which has no bfloat16: float16 stands in for it.
HALF = torch.float16 if INTERPRETED else torch.bfloat16

on_the_cpu = pytest.mark.skipif(INTERPRETED, reason="this is the process for kernels")
with_kernels = pytest.mark.gpu if not INTERPRETED else pytest.mark.usefixtures("poisoned_empty")

FEATURE_MAPS = ["identity", "elu", "1+elu"]


def inputs(batch: int, length: int, heads: int, size: int, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(batch, length, heads, size, generator=generator, dtype=torch.float64) for _ in range(2))
    reflection = torch.randn(size, generator=generator, dtype=torch.float64)
    inverse_frequencies = torch.rand(size // 2, generator=generator, dtype=torch.float64)
    positions = torch.randint(0, 3000, (batch, length), generator=generator)
    return {
        "q": q,
        "k": k,
        "positions": positions,
        "inverse_frequencies": inverse_frequencies,
        "reflection": reflection / reflection.norm(),
    }


@on_the_cpu
@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 70), st.integers(1, 3), st.sampled_from([2, 6, 16])),
    feature_map=st.sampled_from(FEATURE_MAPS),
    reflected=st.booleans(),
    one_row=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_equals_the_reference(shape, feature_map, reflected, one_row, seed):
    x = inputs(*shape, seed=seed)
    positions = x["positions"][0] if one_row else x["positions"]
    options = {"feature_map": feature_map, "reflection": x["reflection"] if reflected else None}
    expected = rotate_reference(x["q"], x["k"], positions, x["inverse_frequencies"], **options)
    for ours, theirs in zip(
        rotate(x["q"], x["k"], positions, x["inverse_frequencies"], **options), expected, strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-11, rtol=1e-11)


@on_the_cpu
@pytest.mark.parametrize("feature_map", FEATURE_MAPS)
@pytest.mark.parametrize("reflected", [True, False])
def test_gradients(feature_map, reflected):
    x = inputs(2, 5, 2, 6)
    q, k, inverse_frequencies = (x[name].requires_grad_() for name in ("q", "k", "inverse_frequencies"))

    def call(q, k, inverse_frequencies):
        reflection = x["reflection"] if reflected else None
        return rotate(q, k, x["positions"] % 7, inverse_frequencies, feature_map=feature_map, reflection=reflection)

    assert torch.autograd.gradcheck(call, (q, k, inverse_frequencies))


@on_the_cpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype):
    x = inputs(2, 50, 2, 16)
    q, k = x["q"].to(dtype), x["k"].to(dtype)
    inverse_frequencies = x["inverse_frequencies"].float()
    options = {"feature_map": "1+elu", "reflection": x["reflection"]}
    exact = rotate_reference(q.double(), k.double(), x["positions"] % 50, inverse_frequencies.double(), **options)
    for ours, theirs in zip(rotate(q, k, x["positions"] % 50, inverse_frequencies, **options), exact, strict=True):
        assert ours.dtype == dtype
        assert (ours.double() - theirs).abs().max() <= (theirs.to(dtype).double() - theirs).abs().max() * 1.01


@on_the_cpu
def test_a_model_in_half_precision_still_counts_positions():
    """bfloat16 has eight bits: position 1001 would become 1000."""
    q = torch.randn(1, 1, 1, 8, dtype=torch.bfloat16)
    inverse_frequencies = torch.ones(4, dtype=torch.bfloat16)
    rotated, _ = rotate(q, q, torch.tensor([1001]), inverse_frequencies)
    expected, _ = rotate_reference(q.double(), q.double(), torch.tensor([1001]), inverse_frequencies.double())
    torch.testing.assert_close(rotated.double(), expected, atol=0.02, rtol=0.02)


@on_the_cpu
@pytest.mark.parametrize("kind", ["rope", "lrpe"])
def test_products_depend_on_the_distance_alone(kind):
    torch.manual_seed(0)
    rotation = Rotation(kind, 8).double()
    token = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64).expand(2, 1, 6, 1, 8)
    near, far = (rotation.rotate(*token, torch.arange(6) + start) for start in (0, 3))
    scores = [torch.einsum("bthd,bshd->ts", *pair) for pair in (near, far)]
    torch.testing.assert_close(scores[0], scores[1], atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(scores[0][0, 1], scores[0][4, 5], atol=1e-12, rtol=1e-12)


@on_the_cpu
@pytest.mark.parametrize("kind", ["none", "rope", "lrpe"])
def test_a_rotation_applies_the_feature_map_first(kind):
    torch.manual_seed(0)
    rotation = Rotation(kind, 8)
    q, k = torch.randn(2, 2, 9, 3, 8)
    positions = torch.arange(9)
    mapped = rotation.rotate(torch.nn.functional.elu(q) + 1, torch.nn.functional.elu(k) + 1, positions)
    for ours, theirs in zip(rotation.rotate(q, k, positions, "1+elu"), mapped, strict=True):
        torch.testing.assert_close(ours, theirs)


@on_the_cpu
def test_a_wrong_call_says_what_is_wrong():
    x = inputs(2, 9, 2, 8)
    q, k, positions, inverse_frequencies, reflection = x.values()
    with pytest.raises(ConfigError, match="one shape and dtype"):
        rotate(q, k[:, :5], positions, inverse_frequencies)
    with pytest.raises(ConfigError, match="one shape and dtype"):
        rotate(q, k.float(), positions, inverse_frequencies)
    with pytest.raises(ConfigError, match="head size 7 is odd"):
        rotate(q[..., :7], k[..., :7], positions, inverse_frequencies)
    with pytest.raises(ConfigError, match=r"positions must be \[T\] = \[9\] or \[B, T\] = \[2, 9\], got \[8\]"):
        rotate(q, k, positions[0, :8], inverse_frequencies)
    with pytest.raises(ConfigError, match=r"inverse_frequencies must be \[D/2\] = \[4\], got \[8\]"):
        rotate(q, k, positions, reflection)
    with pytest.raises(ConfigError, match=r"reflection must be \[D\] = \[8\], got \[4\]"):
        rotate(q, k, positions, inverse_frequencies, reflection=inverse_frequencies)
    with pytest.raises(ConfigError, match="did you mean 'elu'"):
        rotate(q, k, positions, inverse_frequencies, feature_map="eluu")
    with pytest.raises(ConfigError, match="backend 'triton' cannot run"):
        rotate(q, k, positions, inverse_frequencies, backend="triton")


# The kernel

CASES = [  # length, heads, size, φ, reflected, positions by row
    (1, 2, 16, "1+elu", True, True),
    (70, 3, 24, "1+elu", True, False),
    (70, 2, 16, "elu", False, True),
    (37, 1, 2, "identity", True, False),
    (128, 2, 32, "1+elu", True, False),  # whole tiles
    (64, 2, 24, "1+elu", True, False),  # whole down, not across
]
CASES_GPU = [
    (length, 3, size, feature_map, reflected, by_row)
    for size in (16, 32, 64, 96, 128, 256)
    for length, by_row in ((1, True), (257, False), (1000, True), (512, False))
    for feature_map, reflected in (("1+elu", True), ("elu", False), ("identity", True))
]


@with_kernels
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("case", CASES if INTERPRETED else CASES_GPU, ids=str)
def test_kernel(case, dtype):
    length, heads, size, feature_map, reflected, by_row = case
    x = {name: tensor.to(DEVICE) for name, tensor in inputs(2, length, heads, size).items()}
    positions = x["positions"] if by_row else x["positions"][0]
    reflection = x["reflection"].float() if reflected else None

    def call(op, q, k, inverse_frequencies):
        given = None if reflection is None else reflection.to(inverse_frequencies.dtype)
        return op(q, k, positions, inverse_frequencies, feature_map=feature_map, reflection=given)

    check_kernel(
        partial(call, partial(rotate, backend="triton")),
        partial(call, partial(rotate, backend="torch")),
        partial(call, rotate_reference),
        [x["q"].to(dtype), x["k"].to(dtype), x["inverse_frequencies"].float()],
    )


@with_kernels
@pytest.mark.parametrize(
    ("sequences", "feature_map", "reflected"), [(2, "identity", True), (3, "elu", False), (5, "1+elu", True)]
)
def test_sequences_of_one_program_share_their_positions(sequences, feature_map, reflected, monkeypatch):
    """Five sequences: two, two and one a program; three and two; all. By row, each has its own program."""
    from transnormer.ops.rotate import kernel

    monkeypatch.setattr(kernel, "_TILE", 1024)
    x = {name: tensor.to(DEVICE) for name, tensor in inputs(5, 40, 2, 32).items()}
    reflection = x["reflection"].float() if reflected else None
    blocks = 2  # of 32 rows
    monkeypatch.setattr(kernel, "_AT_A_TIME", 5 * blocks * 1024 // sequences)
    same = x["positions"][0]
    grid, taken, _ = kernel._launch(x["q"], same, reflection, 0, 1024)
    assert (grid, taken) == ((blocks, -(-5 // sequences)), sequences)
    assert kernel._launch(x["q"], x["positions"], reflection, 0, 1024)[:2] == ((blocks, 5), 1)

    def call(op, positions, q, k, inverse_frequencies):
        given = None if reflection is None else reflection.to(inverse_frequencies.dtype)
        return op(q, k, positions, inverse_frequencies, feature_map=feature_map, reflection=given)

    leaves = [x["q"].float(), x["k"].float(), x["inverse_frequencies"].float()]
    ours, plain = partial(rotate, backend="triton"), partial(rotate, backend="torch")
    check_kernel(partial(call, ours, same), partial(call, plain, same), partial(call, rotate_reference, same), leaves)
    shared = outputs_and_gradients(partial(call, ours, same), leaves, seed=1)
    for rows in (same.expand(5, 40), same.repeat(5, 1)):
        for a, b in zip(shared, outputs_and_gradients(partial(call, ours, rows), leaves, seed=1), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6 * float(a.abs().max()))


@with_kernels
def test_programs_take_several_sequences_only_while_there_are_enough():
    from transnormer.ops.rotate import kernel

    for shape, tile, programs, sequences in (
        ((128, 1024, 2, 32), 2048, 2048, 2),  # 32 rows, though 64 would fit
        ((128, 512, 8, 64), 1024, 2048, 2),
        ((8, 512, 8, 64), 2048, 128, 1),
        ((3, 2**20, 1, 64), 2048, 2**15, 3),
        ((1, 1, 8, 64), 2048, 1, 1),
    ):
        q, positions = torch.empty(shape, device="meta"), torch.empty(shape[1], device="meta")
        grid, taken, _ = kernel._launch(q, positions, None, 0, tile)
        assert (grid[0] * grid[1], taken) == (programs, sequences)


@with_kernels
def test_angles_of_long_sequences_are_as_exact_as_float32():
    """A pair (1, 0) becomes (cos, sin) of its float32 angle: all quadrants, near the axes, both signs."""
    generator = torch.Generator().manual_seed(0)
    positions = torch.cat([torch.arange(500), torch.randint(0, 131072, (1500,), generator=generator)])
    eighths = torch.pi / 4 * torch.tensor([1.0, -1.0, 0.5, 1e-3])
    inverse_frequencies = torch.cat([torch.rand(60, generator=generator) * 2 - 1, eighths])
    q = torch.tensor([1.0, 0.0]).repeat(64).expand(1, 2000, 1, 128).contiguous()
    rotated, _ = rotate(*(x.to(DEVICE) for x in (q, q, positions, inverse_frequencies)), backend="triton")
    angles = (positions.float()[:, None] * inverse_frequencies).double()
    exact = torch.stack([angles.cos(), angles.sin()], dim=-1).flatten(-2)
    assert (rotated.cpu()[0, :, 0].double() - exact).abs().max() < 1.2e-7


@with_kernels
def test_angles_beyond_float32_still_turn_and_lost_ones_are_not_hidden():
    q = torch.tensor([1.0, 0.0]).repeat(8).expand(1, 40, 1, 16).contiguous().to(DEVICE)
    positions = torch.arange(40, device=DEVICE) * 100_000
    inverse_frequencies = torch.tensor([1.0, 1e3, -1e6, 1e20, -1e30, 1.0, 1.0, float("nan")], device=DEVICE)
    lengths = rotate(q, q, positions, inverse_frequencies, backend="triton")[0].unflatten(-1, (8, 2)).norm(dim=-1)
    torch.testing.assert_close(lengths[..., :7], torch.ones_like(lengths[..., :7]), atol=1e-4, rtol=0)
    assert lengths[..., 7].isnan().all()


@with_kernels
def test_only_heads_and_rows_far_apart_are_copied():
    from transnormer.ops.rotate import kernel

    for strides, copied in (((2**40, 64, 16, 1), False), ((1, 16, 2**30, 1), True), ((1, 2**25, 16, 1), True)):
        x = torch.empty_strided((1, 8, 4, 16), strides, device="meta")
        assert (kernel._near(x) is not x) == copied


def heads_first(x: torch.Tensor) -> torch.Tensor:
    """The same numbers with the heads before the tokens in memory."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


@with_kernels
def test_strided_views_need_no_copies_and_fixed_rates_no_gradient():
    x = inputs(2, 150, 3, 16)
    q, k = x["q"].float().to(DEVICE), x["k"].float().to(DEVICE)
    positions, inverse_frequencies = x["positions"].to(DEVICE), rope_inverse_frequencies(16, torch.device(DEVICE))
    packed = torch.stack([q, k], dim=2)
    expected = rotate(q, k, positions, inverse_frequencies, backend="triton")
    for views in (packed.unbind(2), map(heads_first, (q, k)), (packed[:, :, 0], heads_first(k))):
        ours = rotate(*views, positions, inverse_frequencies, backend="triton")
        assert all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))
    gradients = []
    for backend in ("triton", "torch"):
        leaf = packed.clone().requires_grad_()
        q, k = leaf[:, :, 0], heads_first(leaf[:, :, 1])
        rotated_q, rotated_k = rotate(q, k, positions, inverse_frequencies, feature_map="elu", backend=backend)
        # Gradients of any strides: one with the heads first, one with the features not last.
        (rotated_q.transpose(1, 2).flatten(1).cumsum(1).sin() * rotated_k.mT.flatten(1)).sum().backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-3)


@with_kernels
@pytest.mark.parametrize("feature_map", FEATURE_MAPS)
def test_a_number_that_is_none_stays_none(feature_map):
    """A feature map made of minima and maxima must not turn NaN into a number."""
    q = torch.randn(1, 20, 1, 16, device=DEVICE)
    q[0, 7] = float("nan")
    positions, inverse_frequencies = torch.arange(20, device=DEVICE), rope_inverse_frequencies(16, torch.device(DEVICE))
    rotated, _ = rotate(q, q, positions, inverse_frequencies, feature_map=feature_map, backend="triton")
    assert rotated.isnan().any(dim=-1).flatten().tolist() == [row == 7 for row in range(20)]
    out = norm_attention(q, q, q.nan_to_num(), causal=True, feature_map=feature_map, backend="triton")
    assert out.isnan().any(dim=-1)[0, 7:].all()


@with_kernels
def test_the_same_inputs_give_the_same_bits():
    x = inputs(3, 200, 2, 32)
    runs = []
    for _ in range(2):
        leaves = [x[name].to(DEVICE, torch.float32).requires_grad_() for name in ("q", "k", "inverse_frequencies")]
        q, k = rotate(leaves[0], leaves[1], x["positions"].to(DEVICE), leaves[2], backend="triton")
        (q.tanh() * k).sum().backward()
        runs.append([leaf.grad for leaf in leaves])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@with_kernels
@pytest.mark.parametrize("learned", [True, False])
def test_the_op_is_what_a_compiler_is_told(learned):
    from transnormer.ops.rotate import kernel

    x = {name: tensor.to(DEVICE) for name, tensor in inputs(2, 20, 2, 16).items()}
    q, k = (x[name].float().requires_grad_() for name in ("q", "k"))
    arguments = (
        q,
        k,
        x["positions"],
        x["inverse_frequencies"].float().requires_grad_(learned),
        x["reflection"].float(),
        2,
    )
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    torch.library.opcheck(kernel._op, arguments, test_utils=checks)


@with_kernels
def test_a_compiled_call_of_the_kernel_gives_the_same():
    check_compiled(DEVICE, "triton")


@on_the_cpu
def test_a_compiled_call_gives_the_same():
    check_compiled("cpu", "torch")


def check_compiled(device: str, backend: str) -> None:
    x = {name: tensor.to(device) for name, tensor in inputs(2, 20, 2, 16).items()}
    rest = {"positions": x["positions"], "reflection": x["reflection"].float(), "backend": backend}

    def call(q, k, inverse_frequencies):
        return rotate(q, k, inverse_frequencies=inverse_frequencies, feature_map="1+elu", **rest)

    results = []
    for run in (call, torch.compile(call, fullgraph=True, backend="aot_eager")):
        leaves = [x[name].float().requires_grad_() for name in ("q", "k", "inverse_frequencies")]
        q, k = run(*leaves)
        results.append([q.detach(), k.detach(), *torch.autograd.grad((q.tanh() * k).sum(), leaves)])
    for plain, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain)
    torch.compiler.reset()


@on_the_cpu
@pytest.mark.parametrize("each_its_own", [True, False])
def test_a_compiler_may_know_the_positions_better_than_the_length(each_its_own):
    x = inputs(2, 9, 2, 8)
    if not each_its_own:
        x["positions"] = torch.arange(9)
    expected = rotate(**x)
    for name in ("q", "k"):
        torch._dynamo.maybe_mark_dynamic(x[name], 1)
    torch.testing.assert_close(torch.compile(rotate, fullgraph=True, backend="eager")(**x), expected)
    torch.compiler.reset()


@with_kernels
def test_what_the_kernel_cannot_serve_is_an_error_with_the_reason():
    x = inputs(1, 8, 1, 16)
    q, positions, inverse_frequencies = (x[name].to(DEVICE) for name in ("q", "positions", "inverse_frequencies"))
    with pytest.raises(ConfigError, match="float64"):
        rotate(q, q, positions, inverse_frequencies, backend="triton")
    wide = torch.randn(1, 8, 1, 512, device=DEVICE)
    with pytest.raises(ConfigError, match="head size 512"):
        rotate(wide, wide, positions, torch.randn(256, device=DEVICE), backend="triton")
