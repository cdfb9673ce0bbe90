"""Feed-forward layers as one kernel: which they are, what they keep, and that they are as exact as two products."""

from __future__ import annotations

import os
from functools import partial

import pytest
import torch
from glu_cases import problem
from kernel_cases import outputs_and_gradients, relative

from transnormer.ops import glu
from transnormer.ops.activations import ACTIVATIONS
from transnormer.ops.feed_forward.reference import glu_reference

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
# The interpreter computes with numpy, which has no bfloat16: float16 stands in for it.
HALF = torch.float16 if INTERPRETED else torch.bfloat16

on_the_cpu = pytest.mark.skipif(INTERPRETED, reason="this is the process for kernels")
with_kernels = pytest.mark.gpu if not INTERPRETED else pytest.mark.usefixtures("poisoned_empty")


@with_kernels
@pytest.mark.parametrize("programs", [4, 7])
def test_few_programs_sum_the_weights_of_a_narrow_layer(programs, monkeypatch):
    from transnormer.ops.feed_forward import kernel_small_width

    inputs = problem((330, 16), 100, 8, HALF, DEVICE)  # six tiles of rows, two blocks of units
    expected = outputs_and_gradients(partial(glu_reference), [x.double() for x in inputs], seed=1)
    monkeypatch.setattr(kernel_small_width, "_PROGRAMS", programs)
    for ours, theirs in zip(
        outputs_and_gradients(partial(glu, backend="triton"), inputs, seed=1), expected, strict=True
    ):
        assert relative(ours - theirs, theirs) < (0.002 if INTERPRETED else 0.01)


@with_kernels
@pytest.mark.parametrize("gated", [True, False])
def test_a_narrow_layer_is_registered_as_a_compiler_needs_it(gated):
    from transnormer.ops.feed_forward import kernel_small_width

    x, weight_in, bias_in, weight_out = problem((50, 16), 40, 12, HALF, DEVICE)
    units = 80 if gated else 40
    tensors = (x, weight_in[:units].contiguous(), bias_in[:units].contiguous(), weight_out.mT.contiguous())
    torch.library.opcheck(kernel_small_width._op, (*(tensor.requires_grad_() for tensor in tensors), 0))
    dy = torch.ones(50, 12, dtype=HALF, device=DEVICE)
    for op in (kernel_small_width._dx_op, kernel_small_width._dweights_op):
        torch.library.opcheck(op, (*(tensor.detach() for tensor in tensors), dy, 0))


@with_kernels
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("case", [((70, 128), 192, 128), ((3, 45, 100), 170, 97), ((1, 66), 256, 128)], ids=str)
def test_a_wider_layer_is_one_kernel_where_no_gradients_are_asked_for(case, activation, monkeypatch):
    from transnormer.ops.feed_forward import kernel

    inputs = problem(*case, HALF, DEVICE)
    call = partial(glu, *inputs, activation=activation)
    exact = glu_reference(*(tensor.double() for tensor in inputs), activation=activation)
    products = call(backend="triton")

    def refuse(*_):
        raise AssertionError("this layer should be one kernel")

    with torch.no_grad():
        theirs = relative(call(backend="torch").double() - exact, exact)
        monkeypatch.setattr(kernel, "_op", refuse)
        y = call(backend="triton")
        assert relative(y.double() - exact, exact) <= 2 * theirs
        assert relative(y.double() - products.double(), exact) <= 2 * theirs
        with pytest.raises(AssertionError, match="one kernel"):  # too wide, or in float32
            glu(*problem((5, 129), 192, 128, HALF, DEVICE), backend="triton")
        with pytest.raises(AssertionError, match="one kernel"):
            glu(*(tensor.float() for tensor in inputs), backend="triton")
    with pytest.raises(AssertionError, match="one kernel"):
        call(backend="triton")


@with_kernels
def test_a_narrow_layer_keeps_its_input_alone():
    x, *weights = (tensor.requires_grad_() for tensor in problem((50, 16), 32, 16, HALF, DEVICE))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()) or tensor, lambda t: t):
        glu(x, *weights, backend="triton")
    assert sum(kept) == sum(tensor.numel() for tensor in (x, *weights))
