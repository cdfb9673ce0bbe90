"""The gated linear unit against its equation: both paths, every gradient, and the kernel in Triton's interpreter."""

from __future__ import annotations

import os
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from glu_cases import problem
from kernel_cases import check_kernel, outputs_and_gradients, relative

from transnormer.errors import ConfigError
from transnormer.models.layers import GLU
from transnormer.ops import glu
from transnormer.ops.activations import ACTIVATIONS
from transnormer.ops.backend import explain
from transnormer.ops.feed_forward.reference import glu_reference

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
# The interpreter computes with numpy, which has no bfloat16: float16 stands in for it.
HALF = torch.float16 if INTERPRETED else torch.bfloat16

on_the_cpu = pytest.mark.skipif(INTERPRETED, reason="this is the process for kernels")
with_kernels = pytest.mark.gpu if not INTERPRETED else pytest.mark.usefixtures("poisoned_empty")

CASES = [  # shape of x, F, D_out
    ((1, 8), 1, 4),
    ((5, 8), 7, 3),
    ((3, 7, 12), 33, 12),
    ((70, 8), 32, 8),  # whole blocks of columns, more than one tile of rows
    ((9, 8), 96, 8),  # three blocks
    ((2, 2, 5, 8), 130, 6),  # two blocks, the second nearly empty
    ((20, 4), 256, 4),
]
CASES_GPU = [
    ((1, 64), 96, 64),
    ((33, 77), 101, 50),
    ((4, 2000, 64), 96, 64),
    ((3, 1365, 512), 1408, 512),
    ((20_001, 512), 1365, 512),
    ((300, 128), 4096, 128),
]


@on_the_cpu
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_equals_the_reference(activation):
    inputs = problem((2, 5, 6), 9, 4, torch.float64, "cpu")
    ours, theirs = (
        outputs_and_gradients(partial(op, activation=activation), inputs, seed=1) for op in (glu, glu_reference)
    )
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@on_the_cpu
def test_a_wrong_call_says_what_is_wrong():
    x, weight_in, bias_in, weight_out = problem((3, 6), 8, 4, torch.float32, "cpu")
    for wrong, words in (
        ((x[..., :5], weight_in, bias_in, weight_out), r"weight_in must be \[2F, 5\], got \[16, 6\]"),
        ((x, weight_in[:15], bias_in[:15], weight_out), r"weight_in must be \[2F, 6\], got \[15, 6\]"),
        ((x, weight_in, bias_in[:8], weight_out), r"bias_in must be \[16\], got \[8\]"),
        ((x, weight_in, bias_in, weight_out.T), r"weight_out must be \[D_out, 8\], got \[8, 4\]"),
        ((x.sum(), weight_in, bias_in, weight_out), "got a number"),
        ((x.double(), weight_in, bias_in, weight_out), "one dtype"),
    ):
        with pytest.raises(ConfigError, match=words):
            glu(*wrong)
    with pytest.raises(ConfigError, match="did you mean 'silu'"):
        glu(x, weight_in, bias_in, weight_out, activation="sily")


@on_the_cpu
def test_a_cpu_takes_pytorch_unless_asked_otherwise():
    inputs = problem((3, 6), 8, 4, torch.float32, "cpu")
    assert explain("feed_forward", "cpu").backend == "torch"
    with pytest.raises(ConfigError, match="tensors are on cpu"):
        glu(*inputs, backend="triton")


@with_kernels
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("case", CASES if INTERPRETED else CASES_GPU, ids=str)
def test_is_as_exact_as_pytorch_in_that_dtype(case, dtype, activation):
    call = partial(glu, activation=activation)
    check_kernel(
        partial(call, backend="triton"),
        partial(call, backend="torch"),
        partial(glu_reference, activation=activation),
        problem(*case, dtype, DEVICE),
    )


@with_kernels
@pytest.mark.parametrize("programs", [1, 3])
def test_few_programs_walk_over_many_rows(programs, monkeypatch):
    """Every row is taken once and every sum is added, however the tiles are divided."""
    from transnormer.ops.feed_forward import kernel

    inputs = problem((203, 8), 64, 8, torch.float32, DEVICE)  # 13 tiles of 16 rows
    expected = outputs_and_gradients(partial(glu, backend="torch"), inputs, seed=1)
    monkeypatch.setattr(kernel, "_PROGRAMS", programs)
    monkeypatch.setattr(kernel, "_MAX_GRID", programs)
    for ours, theirs in zip(
        outputs_and_gradients(partial(glu, backend="triton"), inputs, seed=1), expected, strict=True
    ):
        assert relative(ours - theirs, theirs) < 1e-5


@with_kernels
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_large_numbers_saturate(activation):
    """Gates of ±3e4, whose exponentials leave float32, and of zero: values and gradients as PyTorch has them."""
    gate = torch.tensor([-3e4, -100.0, -12.0, 0.0, 12.0, 100.0, 3e4], device=DEVICE)[:, None]
    one = torch.ones(1, 1, device=DEVICE)
    inputs = [gate, torch.cat([one, 0 * one]), torch.tensor([0.0, 1.0], device=DEVICE), one]
    found = []
    for backend in ("triton", "torch"):
        x = gate.clone().requires_grad_()
        y = glu(x, *inputs[1:], activation=activation, backend=backend)
        (dx,) = torch.autograd.grad(y.sum(), x)
        found.append(torch.stack([y.detach(), dx]))
    assert found[0].isfinite().all()
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)


@with_kernels
@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_number_that_is_none_stays_none(activation, dtype):
    x, weight_in, bias_in, weight_out = problem((20, 8), 16, 8, dtype, DEVICE)
    x[7] = torch.nan
    y = glu(x, weight_in, bias_in, weight_out, activation=activation, backend="triton")
    assert y.isnan().any(dim=-1).tolist() == [row == 7 for row in range(20)]
    bias_in[3] = torch.nan  # a gate alone, which a maximum would turn into zero
    assert glu(x, weight_in, bias_in, weight_out, activation=activation, backend="triton").isnan().all()


@with_kernels
@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
def test_strides_do_not_matter(dtype):
    inputs = problem((10, 24), 32, 24, dtype, DEVICE)
    expected = outputs_and_gradients(partial(glu, backend="triton"), inputs, seed=1)

    def transposed(*tensors):
        strided = [tensor.mT.contiguous().mT if tensor.dim() == 2 else tensor for tensor in tensors]
        assert not strided[0].is_contiguous()
        return glu(*strided, backend="triton").mT.contiguous().mT

    for ours, theirs in zip(outputs_and_gradients(transposed, inputs, seed=1), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    leaf = inputs[0].clone().requires_grad_()
    glu(leaf, *inputs[1:], backend="triton").sum().backward()  # a gradient of stride 0
    assert leaf.grad is not None


@with_kernels
@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("rows", [(), (0,), (2, 0)])
def test_one_vector_and_no_rows(rows, dtype):
    inputs = problem((*rows, 8), 32, 8, dtype, DEVICE)
    ours, theirs = (outputs_and_gradients(partial(glu, backend=name), inputs, seed=1) for name in ("triton", "torch"))
    tolerance = 1e-4 if dtype == torch.float32 else 0.02
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@with_kernels
@pytest.mark.parametrize("needed", range(4))
def test_only_the_gradients_that_are_needed(needed):
    inputs = problem((10, 8), 32, 6, torch.float32, DEVICE)
    found = []
    for backend in ("triton", "torch"):
        leaves = [tensor.clone().requires_grad_(index == needed) for index, tensor in enumerate(inputs)]
        glu(*leaves, backend=backend).tanh().sum().backward()
        assert [leaf.grad is not None for leaf in leaves] == [index == needed for index in range(4)]
        found.append(leaves[needed].grad)
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(glu(*inputs, backend="triton"), glu(*inputs, backend="torch"))


@with_kernels
def test_no_gradient_gives_no_gradients():
    class Stop(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return None

    leaves = [tensor.requires_grad_() for tensor in problem((10, 8), 32, 6, torch.float32, DEVICE)]
    Stop.apply(glu(*leaves, backend="triton")).sum().backward()
    assert all(leaf.grad is None for leaf in leaves)


@with_kernels
def test_the_product_of_gate_and_up_is_not_kept():
    inputs = [tensor.requires_grad_() for tensor in problem((50, 8), 32, 6, torch.float32, DEVICE)]
    kept: list[tuple[int, ...]] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        glu(*inputs, backend="triton")
    assert sorted(kept) == [(6, 32), (50, 8), (50, 64), (64, 8)]


@with_kernels
def test_the_same_inputs_give_the_same_bits():
    inputs = problem((500, 16), 96, 16, HALF, DEVICE)
    runs = [outputs_and_gradients(partial(glu, backend="triton"), inputs, seed=1) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@with_kernels
def test_what_the_kernel_cannot_serve_is_an_error_with_the_reason():
    from transnormer.ops.feed_forward import kernel

    with pytest.raises(ConfigError, match="float64"):
        glu(*problem((3, 6), 8, 4, torch.float64, DEVICE), backend="triton")
    assert explain("feed_forward", DEVICE, "triton").backend == "triton"
    assert list(kernel.ACTIVATION_CODES) == list(ACTIVATIONS)


@with_kernels
def test_the_op_is_what_a_compiler_is_told():
    """Shapes, strides and gradients as the fake implementations promise, whichever gradients are asked for."""
    from transnormer.ops.feed_forward import kernel

    inputs = problem((20, 8), 32, 6, torch.float32, DEVICE)
    for needs in ([True] * 4, [True, False, True, False], [False, True, False, True]):
        leaves = [tensor.clone().requires_grad_(need) for tensor, need in zip(inputs, needs, strict=True)]
        torch.library.opcheck(kernel._op, (*leaves, 0))
        x, weight_in, _, weight_out = inputs
        dy, gate_up = torch.randn(20, 6, device=DEVICE), torch.randn(20, 64, device=DEVICE)
        torch.library.opcheck(kernel._backward_op, (x, gate_up, weight_in, weight_out, dy, 0, needs))
    torch.compiler.reset()


@with_kernels
@pytest.mark.parametrize("autocast", [False, True])
def test_a_compiled_call_of_the_kernel_gives_the_same(autocast):
    check_compiled(DEVICE, "triton", autocast)


@on_the_cpu
def test_a_compiled_call_gives_the_same():
    check_compiled("cpu", "torch", autocast=False)


def check_compiled(device: str, backend: str, autocast: bool) -> None:
    inputs = problem((2, 10, 8), 32, 6, torch.float32, device)

    def call(*tensors):
        with torch.autocast(device, dtype=HALF) if autocast else nullcontext():
            return glu(*tensors, backend=backend)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    plain, ours = (outputs_and_gradients(run, inputs, seed=1) for run in (call, compiled))
    for a, b in zip(ours, plain, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b)
    torch.compiler.reset()


@with_kernels
@pytest.mark.parametrize("width", [85, 96])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_layer_with_the_kernel_is_the_layer(width, activation, monkeypatch):
    """In float32, and under autocast as exact as three plain layers; results in its dtype, gradients in float32."""
    torch.manual_seed(0)
    layer = GLU(24, width, activation).to(DEVICE)
    x = torch.randn(2, 30, 24, device=DEVICE)
    names = [name for name, _ in layer.named_parameters()]

    def run(forward):
        return lambda x, *weights: torch.func.functional_call(forward, dict(zip(names, weights, strict=True)), x)

    class Packed(GLU):
        def forward(self, x):
            monkeypatch.setenv("TRANSNORMER_BACKEND", "triton")
            return self.in_two_products(x)

    class Apart(GLU):
        def forward(self, x):
            gate, up = ACTIVATIONS[self.activation](self.gate_proj(x)), self.up_proj(x)
            return self.down_proj(gate * up)

    inputs = [x, *layer.parameters()]
    apart, packed = (run(kind(24, width, activation).to(DEVICE)) for kind in (Apart, Packed))
    check_kernel(packed, apart, run(Apart(24, width, activation).to(DEVICE).double()), inputs)

    def under_autocast(forward):
        def call(*tensors):
            with torch.autocast(DEVICE, dtype=HALF):
                return forward(*tensors)

        return call

    exact = outputs_and_gradients(apart, [tensor.double() for tensor in inputs], seed=1)
    plain, ours = (outputs_and_gradients(under_autocast(forward), inputs, seed=1) for forward in (apart, packed))
    assert ours[0].dtype == HALF
    for a, b, c in zip(ours, plain, exact, strict=True):
        assert a.dtype == b.dtype
        assert relative(a.double() - c, c) <= 2 * relative(b.double() - c, c)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_a_gpu_takes_the_kernel_and_its_memory(compiled):
    layer = GLU(128, 1024, "silu").cuda()
    x = torch.randn(8, 2048, 128, device="cuda", requires_grad=True)
    assert explain("feed_forward", "cuda", x=x, weight_in=layer.up_proj.weight).backend == "triton"
    run = torch.compile(layer, fullgraph=True) if compiled else layer

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = run(x)
        assert y.dtype == torch.bfloat16
        y.float().square().mean().backward()

    step()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    gate_up = 8 * 2048 * 2048 * 2
    assert torch.cuda.max_memory_allocated() - before < 3.2 * gate_up  # with its gradient, h, and a little beside
