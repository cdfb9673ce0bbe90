"""The norm behind an attention as a scale after its output projection: s·(Wx) + b, s from the sums of squares."""

from __future__ import annotations

import os
from functools import partial
from itertools import product

import pytest
import torch
from kernel_cases import check_kernel

from transnormer.mixers.components import xnorm
from transnormer.mixers.registry import build_mixer
from transnormer.ops import diag_attention, norm_attention
from transnormer.ops.diag_attention.reference import diag_attention_reference
from transnormer.ops.norm_attention.reference import norm_attention_reference
from transnormer.ops.packed import packed_bounds

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
# The interpreter computes with numpy, which has no bfloat16: float16 stands in for it.
HALF = torch.float16 if INTERPRETED else torch.bfloat16

on_the_cpu = pytest.mark.skipif(INTERPRETED, reason="this is the process for kernels")
with_kernels = pytest.mark.gpu if not INTERPRETED else pytest.mark.usefixtures("poisoned_empty")

MIXERS = [("norm", {}), ("norm", {"position": "lrpe", "feature_map": "elu"}), ("diag", {"kind": "rela"})]


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype, device: str = "cpu") -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype) for shape in shapes]


def some_mask(batch: int, length: int, device: str = "cpu") -> torch.Tensor:
    return (torch.rand(batch, length, generator=torch.Generator().manual_seed(5)) < 0.7).to(device)


def build(name: str, options: dict, causal: bool = True) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    mixer = build_mixer(name, hidden_size=32, num_heads=4, causal=causal, max_length=256, **options).double()
    torch.nn.init.normal_(mixer.o_proj.bias)  # it starts at zero, which would hide a scale before it
    return mixer, torch.randn(2, 130, 32, dtype=torch.float64)


@pytest.fixture
def folding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fold whether it pays or not, and let nothing normalise the usual way."""
    monkeypatch.setattr(xnorm, "_folding_pays", lambda: True)
    monkeypatch.setattr(xnorm, "rms_norm", None)


# The sums themselves


@on_the_cpu
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 5, 70])
def test_norm_attention_returns_what_was_asked_for(length, causal):
    q, k, v, state = tensors(*[(2, length, 2, 3)] * 3, (2, 2, 3, 3), dtype=torch.float64)
    options = {"causal": causal, "mask": some_mask(2, length), "state": state}
    expected, expected_state = norm_attention_reference(q, k, v, **options)
    out, squares = norm_attention(q, k, v, return_square_sums=True, **options)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(squares, expected.square().sum(-1))
    out, new_state, squares = norm_attention(q, k, v, return_state=True, return_square_sums=True, **options)
    torch.testing.assert_close(new_state, expected_state)
    torch.testing.assert_close(squares, expected.square().sum(-1))


@on_the_cpu
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("op", ["norm", "softmax", "rela"])
def test_gradients(op, causal):
    q, k, v = (x.requires_grad_() for x in tensors(*[(2, 7, 2, 3)] * 3, dtype=torch.float64))
    mask = some_mask(2, 7)

    def call(q, k, v):
        if op == "norm":
            return norm_attention(q, k, v, causal=causal, mask=mask, return_square_sums=True)
        return diag_attention(q, k, v, causal=causal, block_size=4, kind=op, mask=mask, return_square_sums=True)

    out, squares = call(q, k, v)
    torch.testing.assert_close(squares, out.square().sum(-1))
    assert torch.autograd.gradcheck(call, (q, k, v))


@on_the_cpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_squares_are_summed_in_float32(dtype):
    q, k, v = (x * 30 for x in tensors(*[(1, 70, 2, 8)] * 3, dtype=dtype))  # their squares are beyond float16
    for out, squares in (
        norm_attention(q, k, v / 900, causal=True, return_square_sums=True),
        diag_attention(q, k, v, causal=True, return_square_sums=True),
    ):
        assert squares.dtype == torch.float32
        torch.testing.assert_close(squares.double(), out.double().square().sum(-1), rtol=1e-5, atol=1e-5)


# The mixers


@on_the_cpu
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(("name", "options"), MIXERS)
def test_a_folded_mixer_is_the_same_function(name, options, masked, causal, request):
    mixer, x = build(name, options, causal)
    mask = some_mask(2, 130) if masked else None
    if masked:
        mask[0] = False  # a row without a single token: its sums are zero

    with torch.no_grad():
        plain = mixer(x, mask)
        request.getfixturevalue("folding")
        folded = mixer(x, mask)
    assert folded.isfinite().all()
    torch.testing.assert_close(folded, plain, atol=1e-10, rtol=1e-9)


@on_the_cpu
@pytest.mark.parametrize(("name", "options"), MIXERS)
def test_a_folded_mixer_decodes_the_same(name, options, request):
    mixer, x = build(name, options)

    def decode() -> torch.Tensor:
        state, pieces = mixer.init_state(2), []
        for piece in x.split([70, 1, 59], dim=1):
            y, state = mixer(piece, None, state)
            pieces.append(y)
        return torch.cat(pieces, dim=1)

    with torch.no_grad():
        plain = decode()
        if name == "norm":
            request.getfixturevalue("folding")
        torch.testing.assert_close(decode(), plain, atol=1e-10, rtol=1e-9)


@on_the_cpu
@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize(("name", "options"), MIXERS)
def test_a_compiler_folds(name, options, autocast, monkeypatch):
    mixer, x = build(name, options)
    mixer, x = mixer.float(), x.float()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        plain = mixer(x)
        monkeypatch.setattr(xnorm, "rms_norm", None)
        y = torch.compile(mixer, fullgraph=True, backend="aot_eager")(x)
    assert y.dtype == plain.dtype
    tolerance = 3e-2 if autocast else 1e-5
    torch.testing.assert_close(y, plain, atol=tolerance, rtol=tolerance)
    torch.compiler.reset()


@on_the_cpu
def test_only_compiled_inference_folds(monkeypatch):
    mixer, _ = build("norm", {})
    for compiling, trains in product((True, False), (True, False)):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda compiling=compiling: compiling)
        with torch.set_grad_enabled(trains):
            assert mixer.xnorm.folds_into(mixer.o_proj, torch.bfloat16) == (compiling and not trains)


@on_the_cpu
def test_what_cannot_be_folded_is_not(folding):
    mixer, _ = build("norm", {})
    folds = mixer.xnorm.folds_into
    assert folds(mixer.o_proj, torch.bfloat16)
    assert not folds(mixer.o_proj, torch.float16)  # the unnormalised sums would overflow
    assert not folds(torch.nn.Sequential(torch.nn.Linear(32, 32)), torch.bfloat16)  # somebody's own projection
    for kind in ("rms_gain", "layer", "batch", "head_rms", "none"):
        assert not xnorm.XNorm(kind, 32, causal=False).folds_into(mixer.o_proj, torch.bfloat16)
    mixer.o_proj.register_forward_hook(lambda *_: None)
    assert not folds(mixer.o_proj, torch.bfloat16)


# The kernels


def with_squares(op, *inputs, **options):
    out = op(*inputs, **options)
    out = out if isinstance(out, tuple) else (out,)
    return (*out, out[0].square().sum(-1))


NORM = [  # length, head sizes of keys and values, causal, masked and carried state
    (70, 16, 16, True, True),
    (130, 24, 17, True, False),
    (70, 16, 80, True, True),
    (70, 24, 16, False, True),
]
# What else may be compiled is covered by test_kernels.py, sums of squares included.
NORM_GPU = [
    (length, 32, 32, causal, masked) for causal in (True, False) for length, masked in ((257, True), (1000, False))
]


@with_kernels
@pytest.mark.parametrize("segments", ["one segment", "many segments"])
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("case", NORM if INTERPRETED else NORM_GPU, ids=str)
def test_norm_attention_kernel(case, dtype, segments, monkeypatch):
    from transnormer.ops.norm_attention import kernel_plan

    monkeypatch.setattr(kernel_plan, "wanted_segments", lambda *_, **__: 1 if segments == "one segment" else 128)
    length, d, e, causal, masked = case
    shapes = [(2, length, 2, d), (2, length, 2, d), (2, length, 2, e)]
    inputs = tensors(*shapes, dtype=dtype, device=DEVICE)
    if masked:
        inputs += tensors((2, 2, d, e), dtype=torch.float32, device=DEVICE)

    def call(op, q, k, v, state=None):
        return op(q, k, v, state=state, causal=causal, mask=some_mask(2, length, DEVICE) if masked else None)

    ours = partial(norm_attention, return_state=True, return_square_sums=True)
    check_kernel(
        partial(call, partial(ours, backend="triton")),
        partial(call, partial(ours, backend="torch")),
        partial(call, partial(with_squares, norm_attention_reference)),
        inputs,
        gradients=False,
    )


DIAG = [(70, 24, 16, "rela", True, False), (70, 16, 64, "rela", False, True), (129, 16, 64, "softmax", True, True)]
DIAG_GPU = [
    (length, 32, block, kind, causal, masked)
    for kind in ("softmax", "rela")
    for causal in (True, False)
    for length, block, masked in ((257, 16, True), (1000, 64, False))
]


@with_kernels
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("case", DIAG if INTERPRETED else DIAG_GPU, ids=str)
def test_diag_attention_kernel(case, dtype):
    length, d, block_size, kind, causal, masked = case
    options = {"causal": causal, "block_size": block_size, "kind": kind}
    options["mask"] = some_mask(2, length, DEVICE) if masked else None
    check_kernel(
        partial(diag_attention, backend="triton", return_square_sums=True, **options),
        partial(diag_attention, backend="torch", return_square_sums=True, **options),
        partial(with_squares, diag_attention_reference, **options),
        tensors(*[(2, length, 2, d)] * 3, dtype=dtype, device=DEVICE),
        gradients=False,
    )


@with_kernels
@pytest.mark.parametrize("unused", ["squares", "output"])
def test_either_result_may_be_ignored(unused):
    """With gradients the sums are PyTorch's, and have theirs."""
    for op in (partial(norm_attention, causal=True), partial(diag_attention, causal=True, kind="rela")):
        gradients = []
        for backend in ("triton", "torch"):
            inputs = [x.requires_grad_() for x in tensors(*[(2, 70, 2, 16)] * 3, dtype=torch.float32, device=DEVICE)]
            out, squares = op(*inputs, return_square_sums=True, backend=backend)
            (out if unused == "squares" else squares).sum().backward()
            gradients.append([x.grad for x in inputs])
        for ours, theirs in zip(*gradients, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3 * float(theirs.abs().max()))


@with_kernels
@pytest.mark.parametrize("squared", [True, False])
def test_the_ops_are_what_a_compiler_is_told(squared):
    """Shapes, strides and gradients as their fake implementations promise."""
    from transnormer.ops.diag_attention import kernel as diag
    from transnormer.ops.norm_attention import kernel as norm

    q, k, v = (x.requires_grad_() for x in tensors(*[(2, 20, 2, 16)] * 3, dtype=torch.float32, device=DEVICE))
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    packed = [x.detach()[:1].requires_grad_() for x in (q, k, v)]
    bounds = packed_bounds(torch.tensor([0, 1, 20], device=DEVICE), packed[0])
    for causal in (True, False):
        torch.library.opcheck(norm._op, (q, k, v, None, None, None, causal, 2, squared), test_utils=checks)
        cut = norm.bounds_of(packed[0], packed[2], causal, bounds)
        torch.library.opcheck(norm._op, (*packed, None, cut, None, causal, 2, squared), test_utils=checks)
    seeds = torch.tensor([1, 2], device=DEVICE)
    for dropout in ((None, 0.0), (seeds, 0.1)):
        torch.library.opcheck(diag._op, (q, k, v, None, None, *dropout, True, 16, "rela", squared), test_utils=checks)
        call = (*packed, None, bounds.cut(16), *dropout, True, 16, "rela", squared)
        torch.library.opcheck(diag._op, call, test_utils=checks)


@with_kernels
@pytest.mark.parametrize(("name", "options"), MIXERS)
def test_a_compiled_mixer_with_kernels(name, options, monkeypatch):
    monkeypatch.setenv("TRANSNORMER_BACKEND", "triton")
    mixer, x = build(name, options)
    mixer, x = mixer.float().to(DEVICE), x.float().to(DEVICE)
    compiled = torch.compile(mixer, fullgraph=True, backend="aot_eager")
    results = []
    for run in (mixer, compiled):
        inputs = [x.clone().requires_grad_(), *mixer.parameters()]
        y = run(inputs[0])
        results.append([y, *torch.autograd.grad((y * y.detach().cos()).sum(), inputs)])
    for plain, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-3, atol=1e-4 * float(plain.detach().abs().max()))
    torch.compiler.reset()
