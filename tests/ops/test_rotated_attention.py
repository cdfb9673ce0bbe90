"""rotated_attention against rotation and attention in sequence: every kind, every gradient, compiled or not."""

from __future__ import annotations

import itertools
import os
from functools import partial

import pytest
import torch
from kernel_cases import check_kernel, combine, relative
from torch.utils._python_dispatch import TorchDispatchMode

from transnormer.errors import ConfigError
from transnormer.mixers import contract
from transnormer.mixers.registry import build_mixer
from transnormer.ops import rotated_attention
from transnormer.ops.diag_attention.reference import diag_attention_reference
from transnormer.ops.norm_attention.reference import norm_attention_reference
from transnormer.ops.packed import packed_bounds
from transnormer.ops.rotate.reference import rotate_reference

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
# The interpreter computes with numpy, which has no bfloat16: float16 stands in for it.
HALF = torch.float16 if INTERPRETED else torch.bfloat16

on_the_cpu = pytest.mark.skipif(INTERPRETED, reason="this is the process for kernels")
with_kernels = pytest.mark.gpu if not INTERPRETED else pytest.mark.usefixtures("poisoned_empty")

KINDS = [("norm", "1+elu"), ("norm", "elu"), ("softmax", "identity"), ("rela", "identity")]
CASES = [(kind, feature_map, causal) for kind, feature_map in KINDS for causal in (True, False)]
EVERY_CASE = [
    pytest.param(kind, feature_map, causal, id=f"{kind}-{feature_map}-{'causal' if causal else 'full'}")
    for kind, feature_map, causal in CASES
]
BLOCK = 16


def inputs(batch: int, length: int, heads: int, size: int, device: str = "cpu") -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    reflection = torch.randn(size, generator=generator, dtype=torch.float64)
    made = {
        "qkv": torch.randn(batch, length, 3, heads, size, generator=generator, dtype=torch.float64),
        "inverse_frequencies": torch.rand(size // 2, generator=generator, dtype=torch.float64),
        "reflection": reflection / reflection.norm(),
        "positions": torch.arange(length),
        "mask": torch.arange(length) < torch.randint(1, length + 1, (batch, 1), generator=generator),
    }
    return {name: values.to(device) for name, values in made.items()}


def definition(qkv, inverse_frequencies, *, positions, reflection, kind, feature_map, causal, mask, block_size=BLOCK):
    q, k, v = qkv.unbind(2)
    reflection = None if reflection is None else reflection.to(qkv.dtype)
    q, k = rotate_reference(q, k, positions, inverse_frequencies, feature_map=feature_map, reflection=reflection)
    if kind == "norm":
        return norm_attention_reference(q, k, v, causal=causal, feature_map="identity", mask=mask)[0]
    return diag_attention_reference(q, k, v, causal=causal, block_size=block_size, kind=kind, mask=mask)


@on_the_cpu
@pytest.mark.parametrize(("kind", "feature_map", "causal"), EVERY_CASE)
@pytest.mark.parametrize("everything", [True, False])
def test_equals_the_definition(kind, feature_map, causal, everything):
    x = inputs(3, 37, 2, 6)
    options = {"positions": x["positions"], "kind": kind, "feature_map": feature_map, "causal": causal}
    options |= {name: x[name] if everything else None for name in ("reflection", "mask")}
    found = rotated_attention(x["qkv"], inverse_frequencies=x["inverse_frequencies"], block_size=BLOCK, **options)
    expected = definition(x["qkv"], x["inverse_frequencies"], **options)
    torch.testing.assert_close(found.out, expected, atol=1e-10, rtol=1e-10)
    apart = rotated_attention(
        x["qkv"].unbind(2), inverse_frequencies=x["inverse_frequencies"], block_size=BLOCK, **options
    )
    assert torch.equal(apart.out, found.out)
    assert found.state is found.square_sums is None


@on_the_cpu
@pytest.mark.parametrize(("kind", "feature_map", "causal"), EVERY_CASE)
def test_without_frequencies_nothing_is_rotated(kind, feature_map, causal):
    x = inputs(3, 37, 2, 6)
    options = {
        "positions": x["positions"],
        "kind": kind,
        "feature_map": feature_map,
        "causal": causal,
        "mask": x["mask"],
    }
    found = rotated_attention(x["qkv"], block_size=BLOCK, **options).out
    standing = definition(x["qkv"], torch.zeros(3).double(), reflection=None, **options)
    torch.testing.assert_close(found, standing, atol=1e-10, rtol=1e-10)


@on_the_cpu
def test_norm_attention_carries_its_state():
    x = inputs(2, 37, 2, 6)
    call = partial(rotated_attention, kind="norm", causal=True, feature_map="elu", return_square_sums=True)
    call = partial(call, inverse_frequencies=x["inverse_frequencies"], return_state=True)
    whole = call(x["qkv"], x["positions"])
    first = call(x["qkv"][:, :20], x["positions"][:20])
    second = call(x["qkv"][:, 20:], x["positions"][20:], state=first.state)
    torch.testing.assert_close(torch.cat([first.out, second.out], dim=1), whole.out)
    torch.testing.assert_close(second.state, whole.state)
    torch.testing.assert_close(whole.square_sums, whole.out.square().sum(-1))
    with pytest.raises(ConfigError, match="kind 'rela' carries no state"):
        rotated_attention(x["qkv"], x["positions"], kind="rela", causal=True, return_state=True)


@with_kernels
@combine(case=CASES, everything=(True, False), keeps=(True, False))
def test_kernels(case, everything, keeps, monkeypatch):
    """Output, the packed gradient and that of the inverse frequencies; what was rotated kept, and rotated again."""
    from transnormer.ops.rotated_attention import kernel

    kind, feature_map, causal = case
    monkeypatch.setattr(kernel, "_WORTH_RECOMPUTING", 2**40 if keeps else 0)
    x = inputs(2, 70, 2, 16 if INTERPRETED else 64, DEVICE)
    options = {"positions": x["positions"], "kind": kind, "feature_map": feature_map, "causal": causal}
    options |= {name: x[name] if everything else None for name in ("reflection", "mask")}
    ours = partial(rotated_attention, block_size=BLOCK, **options)
    check_kernel(
        lambda qkv, inverse_frequencies: ours(qkv, inverse_frequencies=inverse_frequencies, backend="triton").out,
        lambda qkv, inverse_frequencies: ours(qkv, inverse_frequencies=inverse_frequencies, backend="torch").out,
        partial(definition, **options),
        [x["qkv"].to(torch.float32 if INTERPRETED else HALF), x["inverse_frequencies"].float()],
    )


@with_kernels
def test_the_op_is_well_formed():
    from transnormer.ops.norm_attention import kernel as norm
    from transnormer.ops.rotated_attention import kernel

    x = {name: values.float() for name, values in inputs(2, 20, 2, 16, DEVICE).items()}
    leaves = (
        x["qkv"].requires_grad_(),
        x["positions"].long(),
        x["inverse_frequencies"].requires_grad_(),
        x["reflection"],
    )
    seeds = torch.tensor([1, 2], device=DEVICE)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    for kind, phi, dropout in (("norm", 2, (None, 0.0)), ("softmax", 0, (seeds, 0.1)), ("rela", 0, (None, 0.0))):
        for causal in (True, False):
            for keeps, squared in ((True, False), (False, True)):
                call = (dropout[0], kind, causal, phi, BLOCK, dropout[1], keeps, squared)
                torch.library.opcheck(kernel._op, (*leaves, None, None, *call), test_utils=checks)
    one_row, positions = x["qkv"].detach().flatten(0, 1)[None].requires_grad_(), torch.arange(40, device=DEVICE)
    bounds = packed_bounds(torch.tensor([0, 13, 40], device=DEVICE), one_row)
    for kind, causal in (("norm", True), ("norm", False), ("softmax", True)):
        one = one_row[:, :, 0]
        cut = norm.bounds_of(one, one, causal, bounds) if kind == "norm" else bounds.cut(BLOCK)
        call = (one_row, positions, *leaves[2:], None, cut, None, kind, causal, 0, BLOCK, 0.0, True, False)
        torch.library.opcheck(kernel._op, call, test_utils=checks)


@with_kernels
@combine(case=CASES, keeps=(True, False))
def test_kernels_of_packed_sequences(case, keeps, monkeypatch):
    """What separate calls give, with gradients; without them queries and keys are rotated as they are read."""
    from transnormer.ops.rotated_attention import kernel

    kind, feature_map, causal = case
    monkeypatch.setattr(kernel, "_WORTH_RECOMPUTING", 2**40 if keeps else 0)
    x = inputs(1, 150, 2, 16, DEVICE)
    bounds = [0, 7, 8, 100, 150]
    cu_seqlens = torch.tensor(bounds, device=DEVICE)
    apart = list(itertools.pairwise(bounds))
    positions = torch.cat([torch.arange(end - start, device=DEVICE) for start, end in apart])
    options = {"kind": kind, "feature_map": feature_map, "causal": causal, "reflection": x["reflection"]}
    ours = partial(rotated_attention, block_size=BLOCK, **options)

    def packed(qkv, inverse_frequencies, backend):
        call = {"inverse_frequencies": inverse_frequencies, "cu_seqlens": cu_seqlens, "backend": backend}
        return ours(qkv, positions, **call).out

    def separately(qkv, inverse_frequencies):
        outs = [
            definition(qkv[:, start:end], inverse_frequencies, positions=positions[start:end], mask=None, **options)
            for start, end in apart
        ]
        return torch.cat(outs, dim=1)

    leaves = [x["qkv"].to(torch.float32 if INTERPRETED else HALF), x["inverse_frequencies"].float()]
    check_kernel(partial(packed, backend="triton"), partial(packed, backend="torch"), separately, leaves)
    with torch.no_grad():
        out, _, squares = ours(
            leaves[0], positions, inverse_frequencies=leaves[1], cu_seqlens=cu_seqlens, return_square_sums=True,
            backend="triton",
        )  # fmt: skip
    exact = separately(*(leaf.double() for leaf in leaves))
    assert relative(out - exact, exact) < (1e-4 if INTERPRETED else 1e-2)
    assert relative(squares - exact.square().sum(dim=-1), exact.square().sum(dim=-1)) < (1e-3 if INTERPRETED else 2e-2)


@with_kernels
@combine(case=[("norm", 0.0), ("diag", 0.0), ("diag", 0.3)], position=("rope", "lrpe"), compiled=(False, True))
def test_a_mixer_trains_as_it_would_apart(case, position, compiled, monkeypatch):
    """The same output and gradients whether its projection, rotation and attention are one op or three."""
    name, dropout = case
    monkeypatch.setenv("TRANSNORMER_BACKEND", "triton")
    options = {"position": position} | ({"dropout": dropout, "block_size": BLOCK} if name == "diag" else {})
    torch.manual_seed(0)
    mixer = build_mixer(name, hidden_size=32, num_heads=2, causal=True, max_length=70, **options).to(DEVICE)
    x = torch.randn(2, 40, 32, device=DEVICE)
    mask = torch.arange(40, device=DEVICE) < torch.tensor([[40], [23]], device=DEVICE)
    run = torch.compile(mixer, fullgraph=True, backend="aot_eager") if compiled else mixer
    results = []
    for packs in (True, False):
        monkeypatch.setattr(contract, "should_pack", lambda *_, packs=packs: packs)
        leaves = [x.clone().requires_grad_(), *mixer.parameters()]
        torch.manual_seed(1)  # the dropped weights are drawn alike
        y = run(leaves[0], mask, packed=True)
        results.append([y, *torch.autograd.grad((y * y.detach().cos()).sum(), leaves)])
        torch.compiler.reset()
    for packed, apart in zip(*results, strict=True):
        torch.testing.assert_close(packed, apart, rtol=1e-3, atol=1e-4 * float(apart.detach().abs().max()))


# Shapes and blocks: ragged, with columns to fill up, wide, and on a GPU those of models.
ROTATED = [((2, 70, 2, 16), 32), ((1, 70, 3, 12), 50), ((1, 30, 2, 64), 16)]
if not INTERPRETED:
    ROTATED += [((20, 1024, 8, 16), 32), ((2, 4096, 2, 32), 64), ((64, 512, 2, 32), 16), ((4, 512, 4, 24), 128)]
    ROTATED += [((16, 512, 8, 64), 64), ((4, 500, 4, 96), 32), ((4, 512, 4, 128), 64), ((2, 300, 2, 128), 128)]


@with_kernels
@combine(case=CASES, sizes=ROTATED, together=(True, False))
def test_what_is_rotated_as_it_is_read(case, sizes, together, monkeypatch):
    """Without gradients: as near the definition as a rotation, an attention and sums of squares one after the other.

    Heads share a program or have one each.
    """
    from transnormer.ops.kernels import rotation

    (kind, feature_map, causal), (shape, block) = case, sizes
    monkeypatch.setattr(rotation, "_ENOUGH", 1 if together else 2**40)
    x = inputs(*shape, DEVICE)
    half = {"qkv": x["qkv"].to(HALF), "inverse_frequencies": x["inverse_frequencies"].float()}
    # Other positions in every sequence, as after packing, or the same; a reflection and a mask or neither.
    # Not a shift alone, which attention does not see.
    moved = torch.stack([x["positions"] * (1 + row % 3) + 7 * row for row in range(shape[0])])
    for positions, given in ((moved, ("reflection", "mask")), (x["positions"], ())):
        options = {"positions": positions, "kind": kind, "feature_map": feature_map, "causal": causal}
        options |= {name: x[name] if name in given else None for name in ("reflection", "mask")}
        ours = partial(rotated_attention, **half, block_size=block, backend="triton", **options)
        with torch.no_grad():
            out, _, squares = ours(return_square_sums=True)
        apart = ours().out
        exact = definition(half["qkv"].double(), x["inverse_frequencies"], block_size=block, **options)
        assert torch.equal(out, apart) or not INTERPRETED
        assert relative(out - exact, exact) <= 1.05 * relative(apart - exact, exact) + 1e-6
        sums = exact.square().sum(dim=-1)
        assert relative(squares - sums, sums) < (2e-3 if INTERPRETED else 1e-2)


@with_kernels
def test_heads_share_a_program_where_there_are_enough():
    from transnormer.ops.kernels.rotation import NO_ROTATION, Rotation

    rotation = Rotation(torch.arange(4), torch.ones(8))
    for heads, others, together in ((8, 1024, 8), (8, 512, 4), (8, 150, 1), (6, 400, 2), (7, 200, 1), (1, 10**6, 1)):
        assert rotation.heads_per_program(heads, others) == together
        assert NO_ROTATION.heads_per_program(heads, others) == 1


@with_kernels
def test_square_sums_are_differentiable():
    x = {name: values.float() for name, values in inputs(2, 20, 2, 16, DEVICE).items()}
    call = partial(
        rotated_attention,
        positions=x["positions"].long(),
        kind="norm",
        causal=False,
        inverse_frequencies=x["inverse_frequencies"],
    )
    qkv = x["qkv"].requires_grad_()
    for backend in ("triton", "torch"):
        out, _, squares = call(qkv, return_square_sums=True, backend=backend)
        torch.testing.assert_close(squares, out.square().sum(dim=-1), rtol=1e-4, atol=1e-4)
        found = torch.autograd.grad(squares.sum() + out.sin().sum(), qkv)[0]
        again = call(qkv, backend=backend).out
        expected = torch.autograd.grad(again.square().sum() + again.sin().sum(), qkv)[0]
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


@with_kernels
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("name", "kind"), [("norm", None), ("diag", "softmax"), ("diag", "rela")])
def test_a_mixer_infers_what_it_trains(name, kind, causal, monkeypatch):
    """Compiled, without gradients: queries and keys are rotated on the way, the norm is folded; the same output."""
    monkeypatch.setenv("TRANSNORMER_BACKEND", "triton")
    monkeypatch.setattr(contract, "should_pack", lambda *_: True)
    options = {"position": "lrpe"} | ({"block_size": BLOCK, "kind": kind} if name == "diag" else {})
    torch.manual_seed(0)
    mixer = build_mixer(name, hidden_size=32, num_heads=2, causal=causal, max_length=70, **options).to(DEVICE)
    x = torch.randn(2, 40, 32, device=DEVICE)
    mask = torch.arange(40, device=DEVICE) < torch.tensor([[40], [23]], device=DEVICE)
    trained = mixer(x, mask, packed=True)
    with torch.no_grad():
        inferred = mixer(x, mask, packed=True)
        compiled = torch.compile(mixer, fullgraph=True, backend="aot_eager")(x, mask, packed=True)
    real = mask[:, :, None]
    for y in (inferred, compiled):
        torch.testing.assert_close(y * real, trained * real, rtol=1e-3, atol=1e-4 * float(trained.detach().abs().max()))
    torch.compiler.reset()


@with_kernels
@pytest.mark.parametrize("name", ["norm", "diag"])
def test_a_compiled_mixer_takes_sequences_of_any_length(name, monkeypatch):
    """At the second length the compiler leaves it open, with gradients and without."""
    monkeypatch.setenv("TRANSNORMER_BACKEND", "triton")
    monkeypatch.setattr(contract, "should_pack", lambda *_: True)
    torch.manual_seed(0)
    mixer = build_mixer(name, hidden_size=32, num_heads=2, causal=True, max_length=70, position="rope").to(DEVICE)
    compiled = torch.compile(mixer, fullgraph=True, backend="aot_eager")
    for length in (40, 70, 51):
        x = torch.randn(2, length, 32, device=DEVICE)
        for trains in (True, False):
            with torch.set_grad_enabled(trains):
                torch.testing.assert_close(compiled(x, packed=True), mixer(x, packed=True), rtol=1e-3, atol=1e-4)
    torch.compiler.reset()


@with_kernels
def test_what_is_one_op():
    """Packed QKV that is rotated and carries no state; anything else is a rotation and an attention."""
    x = {name: values.float() for name, values in inputs(1, 20, 2, 16, DEVICE).items()}

    class Ops(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            name = function._schema.name
            if name.startswith("transnormer::"):
                called.append(name.removeprefix("transnormer::"))
            return function(*args, **(kwargs or {}))

    both, rotation = ["rotate", "norm_attention"], {"inverse_frequencies": x["inverse_frequencies"]}
    for qkv, options, expected in (
        (x["qkv"], rotation, ["rotated_attention"]),
        (x["qkv"].unbind(2), rotation, both),
        (x["qkv"], {**rotation, "return_state": True}, both),
        (x["qkv"], {}, both[1:]),
    ):
        called: list[str] = []
        with Ops():
            rotated_attention(qkv, x["positions"].long(), kind="norm", causal=True, backend="triton", **options)
        assert called == expected


def test_what_is_wrong_is_said():
    x = inputs(1, 8, 1, 16)
    with pytest.raises(ConfigError, match=r"must be \[B, T, 3, H, D\]"):
        rotated_attention(x["qkv"][:, :, 0], x["positions"], x["inverse_frequencies"], kind="norm", causal=True)
    with pytest.raises(ConfigError, match="unknown kind 'nrom'") as caught:
        rotated_attention(x["qkv"], x["positions"], x["inverse_frequencies"], kind="nrom", causal=True)
    assert "norm" in caught.value.hint


def test_shapes_are_checked_before_any_kernel_reads():
    """The errors are those of this op, which a kernel serves as a whole, not those of its parts."""
    x = inputs(2, 8, 1, 16)
    call = partial(rotated_attention, x["qkv"], kind="softmax", causal=True)
    with pytest.raises(ConfigError, match=r"rotated_attention: mask must be \[B, T\] = \[2, 8\], got \[2, 7\]"):
        call(x["positions"], x["inverse_frequencies"], mask=torch.ones(2, 7))
    with pytest.raises(ConfigError, match=r"rotated_attention: positions must be"):
        call(x["positions"][..., :5], x["inverse_frequencies"])
    with pytest.raises(ConfigError, match=r"rotated_attention: inverse_frequencies must be \[D/2\] = \[8\]"):
        call(x["positions"], x["inverse_frequencies"][:3])
    with pytest.raises(ConfigError, match="rotated_attention: block_size must be at least 1"):
        call(x["positions"], x["inverse_frequencies"], block_size=0)
    with pytest.raises(ConfigError, match="rotated_attention: dropout_p must be at least 0 and below 1, got 1"):
        call(x["positions"], x["inverse_frequencies"], dropout_p=1)


@with_kernels
def test_what_the_kernels_cannot_serve_is_an_error_with_the_reason():
    x = inputs(1, 8, 1, 16, DEVICE)
    call = partial(rotated_attention, positions=x["positions"], causal=True, backend="triton")
    with pytest.raises(ConfigError, match="float64"):
        call(x["qkv"], inverse_frequencies=x["inverse_frequencies"], kind="norm")
    wide = torch.randn(1, 8, 3, 1, 160, device=DEVICE)
    with pytest.raises(ConfigError, match="head size 160 is above 128"):
        call(wide, inverse_frequencies=torch.randn(80, device=DEVICE), kind="norm")
    with pytest.raises(ConfigError, match="block_size 256 is above 128"):
        call(x["qkv"].float(), inverse_frequencies=x["inverse_frequencies"].float(), kind="softmax", block_size=256)
