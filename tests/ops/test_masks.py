"""Masks of the ops are bool or integers, 1 = real token; a float mask may be an additive one, where 0 = real."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import pytest
import torch
from kernel_cases import relative
from torch import Tensor

from transnormer.errors import ConfigError
from transnormer.ops import diag_attention, norm_attention, random_features, rotated_attention
from transnormer.ops.diag_attention.reference import diag_attention_reference
from transnormer.ops.norm_attention.reference import norm_attention_reference

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()


def masked_ops() -> dict[str, Callable[..., Tensor]]:
    """Every op that takes a mask, as a function of it."""
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(2, 5, 3, 2, 8, generator=generator)
    q, k, v = qkv.unbind(2)
    inverse_frequencies, weight = torch.rand(4, generator=generator), torch.randn(6, 8, generator=generator)

    def rotated(mask: Tensor) -> Tensor:
        return rotated_attention(qkv, torch.arange(5), inverse_frequencies, kind="norm", causal=True, mask=mask).out

    return {
        "norm_attention": partial(norm_attention, q, k, v, causal=True),
        "diag_attention": partial(diag_attention, q, k, v, causal=True),
        "rotated_attention": rotated,
        "random_features": partial(random_features, q, weight, scale=0.5, epsilon=1e-4, scope="sequence"),
    }


ALL = pytest.mark.parametrize(("name", "op"), masked_ops().items(), ids=masked_ops().keys())


@ALL
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_float_mask_is_refused_with_both_ways_to_mean_it(name, op, dtype):
    additive = torch.zeros(2, 5, dtype=dtype).masked_fill(~MASK, -torch.inf)
    with pytest.raises(ConfigError, match=f"{name}: mask must be bool or integers, 1 = real token, got {dtype}") as got:
        op(mask=additive)
    assert "mask.bool()" in got.value.hint
    assert "mask == 0" in got.value.hint
    torch.testing.assert_close(op(mask=additive == 0), op(mask=MASK))


@ALL
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_integers_are_taken(name, op, dtype):
    assert torch.equal(op(mask=MASK.to(dtype)), op(mask=MASK))


@ALL
def test_a_mask_of_another_shape_is_refused(name, op):
    with pytest.raises(ConfigError, match=rf"{name}: mask must be \[B, T\] = \[2, 5\], got \[5, 2\]"):
        op(mask=MASK.T)


@ALL
def test_a_compiler_sees_one_graph(name, op):
    compiled = torch.compile(lambda mask: op(mask=mask), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(MASK), op(mask=MASK))


def backends() -> list:
    """Plain PyTorch, and the kernels where they run: on a GPU, or in the interpreter."""
    device = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
    kernels = pytest.param("triton", device, marks=[] if INTERPRETED else pytest.mark.gpu)
    return [pytest.param("torch", "cpu"), kernels]


@pytest.mark.parametrize(("backend", "device"), backends())
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", ["norm", "norm-wide", "softmax", "rela"])
def test_what_lies_in_padding_reaches_no_real_token_nor_its_gradient(kind, causal, backend, device):
    size = 72 if kind == "norm-wide" else 8
    # A GPU has no registers for float32 tiles of wide heads.
    dtype, bound = (torch.bfloat16, 2e-2) if (kind, device) == ("norm-wide", "cuda") else (torch.float32, 1e-5)
    mask = torch.ones(2, 70, dtype=torch.bool, device=device)
    mask[0, 40:], mask[1, 3], mask[1, 65:] = False, False, False
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(3, 2, 70, 1, size, generator=generator).to(device, dtype)

    def result(filling: float, function: Callable | None = None) -> list[Tensor]:
        inputs = qkv.masked_fill(~mask[..., None, None], filling).requires_grad_()
        if kind.startswith("norm"):
            op = function or partial(norm_attention, return_state=True, backend=backend)
            out, state = op(*inputs, causal=causal, mask=mask)
        else:
            op = function or partial(diag_attention, backend=backend)
            out, state = op(*inputs, causal=causal, mask=mask, kind=kind, block_size=16), inputs.new_zeros(())
        [gradient] = torch.autograd.grad(out.square().sum() + state.square().sum(), inputs)
        return [out.detach(), state.detach(), gradient]

    reference = norm_attention_reference if kind.startswith("norm") else diag_attention_reference
    expected = result(0.0)
    for found in (result(float("nan")), result(float("nan"), reference)):
        for ours, theirs in zip(found, expected, strict=True):
            assert relative(ours - theirs, theirs) < bound
