"""Linear layers of few rows against their equations: both paths, and the kernels in Triton's interpreter."""

from __future__ import annotations

import os
from functools import partial
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from kernel_cases import FLOOR, relative
from torch.utils._python_dispatch import TorchDispatchMode

import transnormer as tn
from transnormer.errors import ConfigError
from transnormer.models.layers import GLU
from transnormer.ops import gated, linears
from transnormer.ops.activations import ACTIVATIONS
from transnormer.ops.backend import explain

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
# The interpreter computes with numpy, which has no bfloat16: float16 stands in for it.
HALF = torch.float16 if INTERPRETED else torch.bfloat16

on_the_cpu = pytest.mark.skipif(INTERPRETED, reason="this is the process for kernels")
with_kernels = pytest.mark.gpu if not INTERPRETED else pytest.mark.usefixtures("poisoned_empty")

# Rows, K, N.
CASES = [(1, 16, 5), (2, 40, 33), (17, 130, 20), (64, 16, 48)]
CASES_GPU = [
    (1, 512, 512),
    (2, 512, 1365),
    (16, 512, 512),
    (33, 200, 77),
    (64, 512, 1365),
    (64, 1024, 33),
    (5, 1365, 64),
]


def problem(
    rows: int, size: int, width: int, layers: int, dtype: torch.dtype, device: str
) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    """x, weights and biases; results have a standard deviation of about 1.4."""
    generator = torch.Generator().manual_seed(rows + width)

    def random(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * scale).to(device, dtype)

    weights = [random(width, size, scale=size**-0.5) for _ in range(layers)]
    return random(rows, size), weights, [random(width) for _ in range(layers)]


def call_gated(x, weights, biases, **options):
    return gated(x, weights[0], biases[0], weights[1], biases[1], **options)


def exact_linears(x, weights, biases):
    return [x.double() @ weight.double().T + bias.double() for weight, bias in zip(weights, biases, strict=True)]


def exact_gated(x, weights, biases, activation):
    gate, up = exact_linears(x, weights, biases)
    return ACTIVATIONS[activation](gate) * up


@on_the_cpu
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_every_layer_is_that_layer(layers):
    x, weights, biases = problem(6, 5, 4, layers, torch.float64, "cpu")
    found = linears(x.reshape(2, 3, 5), weights, biases)
    assert [y.shape for y in found] == [(2, 3, 4)] * layers
    for y, expected in zip(found, exact_linears(x, weights, biases), strict=True):
        torch.testing.assert_close(y.reshape(6, 4), expected)


@on_the_cpu
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_gate_opens_what_goes_up(activation):
    x, weights, biases = problem(6, 5, 4, 2, torch.float64, "cpu")
    found = call_gated(x.reshape(2, 3, 5), weights, biases, activation=activation)
    torch.testing.assert_close(found.reshape(6, 4), exact_gated(x, weights, biases, activation))


@on_the_cpu
def test_a_wrong_call_says_what_is_wrong():
    x, weights, biases = problem(3, 6, 4, 2, torch.float32, "cpu")
    for wrong, words in (
        ((x.sum(), weights, biases), "got a number"),
        ((x, weights[:1], biases), "each with a bias, got 1 and 2"),
        ((x, weights * 2, biases * 2), "up to 3 weights, each with a bias, got 4 and 4"),
        ((x, [], []), "got 0 and 0"),
        ((x[:, :5], weights, biases), r"every weight must be \[N, K\] = \[4, 5\], got \[4, 6\]"),
        ((x, [weights[0], weights[1][:3]], biases), r"\[4, 6\], got \[3, 6\]"),
        ((x, weights, [biases[0], biases[1][:3]]), r"every bias must be \[N\] = \[4\], got \[3\]"),
        ((x.double(), weights, biases), "one dtype"),
    ):
        with pytest.raises(ConfigError, match=words):
            linears(*wrong)
    with pytest.raises(ConfigError, match="did you mean 'relu'"):
        call_gated(x, weights, biases, activation="relo")
    with pytest.raises(ConfigError, match="tensors are on cpu"):
        linears(x, weights, biases, backend="triton")


@on_the_cpu
def test_explain_says_when_rows_are_few():
    def choice(rows: int, dtype: torch.dtype = torch.bfloat16):
        return explain("skinny_linear", "cuda", x=torch.empty(rows, 1, 8, dtype=dtype, device="meta"))

    assert choice(64).backend == "triton"
    assert "65 rows" in choice(65).reason
    assert "0 rows" in choice(0).reason
    assert "float32" in choice(1, torch.float32).reason


@on_the_cpu
@pytest.mark.parametrize("mode", ["bfloat16", "autocast"])
def test_a_model_generates_in_half_precision(mode):
    torch.manual_seed(0)
    model = tn.TransNormerForCausalLM(tn.preset("t2-tiny", dropout=0.0)).eval()
    model = model.bfloat16() if mode == "bfloat16" else model
    with torch.autocast("cpu", torch.bfloat16, enabled=mode == "autocast"):
        assert model.generate(torch.ones(2, 3, dtype=torch.long), max_new_tokens=3, pad_token_id=256).shape == (2, 6)


def check(found: torch.Tensor, plain: torch.Tensor, exact: torch.Tensor) -> None:
    assert found.dtype == plain.dtype
    allowed = max(2 * relative(plain.double() - exact, exact), FLOOR)
    assert relative(found.double() - exact, exact) <= allowed


@with_kernels
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("case", CASES if INTERPRETED else CASES_GPU, ids=str)
def test_linears(case, layers):
    inputs = problem(*case, layers, HALF, DEVICE)
    found, plain = (linears(*inputs, backend=backend) for backend in ("triton", "torch"))
    for results in zip(found, plain, exact_linears(*inputs), strict=True):
        check(*results)


@with_kernels
@pytest.mark.parametrize(("case", "activation"), product(CASES if INTERPRETED else CASES_GPU, ACTIVATIONS), ids=str)
def test_gated(case, activation):
    inputs = problem(*case, 2, HALF, DEVICE)
    found, plain = (call_gated(*inputs, activation=activation, backend=backend) for backend in ("triton", "torch"))
    check(found, plain, exact_gated(*inputs, activation))


@with_kernels
def test_autocast_rounds_for_pytorch_only():
    x, weights, biases = problem(3, 24, 20, 2, HALF, DEVICE)
    with torch.autocast(DEVICE, HALF), pytest.raises(ConfigError, match="autocast would round the weights"):
        linears(x, weights, biases, backend="triton")


@with_kernels
def test_strides_do_not_matter_and_the_same_inputs_give_the_same_bits():
    x, weights, biases = problem(10, 24, 20, 3, HALF, DEVICE)
    wide = torch.zeros(10, 2, 24, dtype=HALF, device=DEVICE)
    wide[:, 1] = x
    rotated = [weight.mT.contiguous().mT for weight in weights]
    for op, count in ((linears, 3), (call_gated, 2)):
        once, again = (op(x, weights[:count], biases[:count], backend="triton") for _ in range(2))
        apart = op(wide[:, 1], rotated[:count], biases[:count], backend="triton")
        for a, b, c in zip(once, again, apart, strict=True):
            assert torch.equal(a, b)
            assert torch.equal(a, c)


@with_kernels
def test_a_number_that_is_none_stays_in_its_row():
    x, weights, biases = problem(5, 24, 20, 2, HALF, DEVICE)
    x[3, 7] = torch.nan
    for y in (*linears(x, weights, biases, backend="triton"), call_gated(x, weights, biases, backend="triton")):
        assert y.isnan().all(dim=1).tolist() == y.isnan().any(dim=1).tolist() == [False] * 3 + [True, False]


@with_kernels
def test_the_ops_are_what_a_compiler_is_told():
    from transnormer.ops.skinny_linear import kernel

    x, weights, biases = problem(5, 24, 20, 2, HALF, DEVICE)
    torch.library.opcheck(kernel._linears_op, (x, weights, biases))
    torch.library.opcheck(kernel._gated_op, (x, weights[0], biases[0], weights[1], biases[1], 0))
    for op in (linears, call_gated):
        call = partial(op, backend="triton")
        for a, b in zip(
            torch.compile(call, fullgraph=True, backend="aot_eager")(x, weights, biases),
            call(x, weights, biases),
            strict=True,
        ):
            assert torch.equal(a, b)
    torch.compiler.reset()


@with_kernels
def test_kernels_refuse_tangents():
    x, weights, biases = problem(3, 16, 20, 2, HALF, DEVICE)
    for op in (linears, call_gated):
        with pytest.raises(ConfigError, match="no forward-mode derivative"):
            torch.func.jvp(lambda x, op=op: op(x, weights, biases, backend="triton"), (x,), (x,))


class Called(TorchDispatchMode):
    """Counts the calls of our ops."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "transnormer":
            self.names.append(function._schema.name.removeprefix("transnormer::"))
        return function(*args, **(kwargs or {}))


@with_kernels
def test_one_token_of_each_text_takes_them(monkeypatch):
    """Projections of an attention and the feed-forward layer; not with gradients, not for longer sequences."""
    monkeypatch.setenv("TRANSNORMER_BACKEND", "triton" if INTERPRETED else "auto")
    torch.manual_seed(0)
    mixer = tn.build_mixer("linear_elu", hidden_size=32, num_heads=2, causal=True, max_length=8).to(DEVICE, HALF)
    layer = GLU(32, 50, "silu").to(DEVICE, HALF)
    x = torch.randn(3, 1, 32, device=DEVICE).to(HALF)
    with torch.no_grad(), Called() as called:
        q, k, v = mixer.project(x)
        y = layer(x)
    assert called.names == ["skinny_linears", "skinny_gated"]
    with torch.no_grad():
        for found, projection in ((q, mixer.q_proj), (k, mixer.k_proj), (v, mixer.v_proj)):
            torch.testing.assert_close(found.flatten(2), projection(x), rtol=0.02, atol=0.02)
        expected = layer.down_proj(F.silu(layer.gate_proj(x)) * layer.up_proj(x))
        torch.testing.assert_close(y, expected, rtol=0.02, atol=0.02)
    with Called() as called:
        mixer.project(x)
        layer(x)
    assert not any(name.startswith("skinny_linear") for name in called.names)
