"""Masks of the ops are bool or integers, 1 = real token; a float mask may be an additive one, where 0 = real."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from transnormer.errors import ConfigError
from transnormer.ops import diag_attention, norm_attention, random_features, rotated_attention

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
