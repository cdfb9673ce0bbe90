"""Forward-mode derivatives: through an op's formula they are those of finite differences, through its kernel an error.

PyTorch drops the tangents of a custom op without a word, and its derivative would be zero.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from transnormer.errors import ConfigError
from transnormer.ops import (
    diag_attention,
    glu,
    linear_cross_entropy,
    mlp,
    norm_attention,
    random_features,
    rms_norm,
    rotate,
    rotated_attention,
)

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"

on_the_cpu = pytest.mark.skipif(INTERPRETED, reason="this is the process for kernels")
with_kernels = pytest.mark.gpu if not INTERPRETED else pytest.mark.usefixtures("poisoned_empty")

# Each op with the sizes of all tensors that it has a derivative to.
ATTENTION = ((2, 5, 2, 16),) * 3
LAYER = ((3, 16), (64, 16), (64,), (16, 32))
POSITIONS = torch.arange(5)
CASES: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "norm_attention": (
        lambda q, k, v, state, **options: norm_attention(q, k, v, state=state, causal=True, **options),
        (*ATTENTION, (2, 2, 16, 16)),
    ),
    "diag_attention": (partial(diag_attention, causal=True, kind="rela"), ATTENTION),
    "diag_attention softmax": (partial(diag_attention, causal=True), ATTENTION),
    "rotated_attention": (
        lambda qkv, inverse_frequencies, **options: (
            rotated_attention(
                qkv, POSITIONS.to(qkv.device), inverse_frequencies, kind="norm", causal=True, **options
            ).out
        ),
        ((2, 5, 3, 2, 16), (8,)),
    ),
    "rotate": (
        lambda q, k, inverse_frequencies, **options: torch.cat(
            rotate(q, k, POSITIONS.to(q.device), inverse_frequencies, **options)
        ),
        (*ATTENTION[:2], (8,)),
    ),
    "rms_norm": (rms_norm, ((3, 16), (16,))),
    "glu": (glu, LAYER),
    "mlp": (mlp, ((3, 16), (32, 16), (32,), (16, 32), (16,))),
    "random_features": (
        lambda x, **options: random_features(
            x, torch.eye(16, device=x.device).to(x.dtype), scale=0.5, epsilon=1e-4, scope="token", **options
        ),
        ATTENTION[:1],
    ),
}
CROSS_ENTROPY = (
    lambda x, weight, bias, **options: linear_cross_entropy(
        x, weight, bias, torch.arange(3, device=x.device), **options
    ),
    ((3, 16), (30, 16), (30,)),
)


def tensors(sizes: tuple[tuple[int, ...], ...], dtype: torch.dtype, seed: int, device: str = "cpu") -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator, dtype=dtype).to(device) for size in sizes]


@on_the_cpu
@pytest.mark.parametrize("name", CASES)
def test_the_formula_has_the_tangent_of_finite_differences(name):
    op, sizes = CASES[name]
    at, along = tensors(sizes, torch.float64, seed=1), tensors(sizes, torch.float64, seed=2)
    _, tangent = torch.func.jvp(op, tuple(at), tuple(along))
    step = 1e-6
    ahead, behind = (op(*(x + sign * step * way for x, way in zip(at, along, strict=True))) for sign in (1, -1))
    torch.testing.assert_close(tangent, (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-5)


def refuses_each_tangent(name: str, op: Callable[..., Tensor], sizes: tuple[tuple[int, ...], ...], device: str) -> None:
    """Every tensor is differentiated by itself: none of them may be forgotten."""
    at = tensors(sizes, torch.float16, seed=1, device=device)
    op(*at)
    for index, x in enumerate(at):

        def of_one(x: Tensor, index: int = index) -> Tensor:
            return op(*at[:index], x, *at[index + 1 :])

        with pytest.raises(ConfigError, match=f"{name}: .* no forward-mode derivative"):
            torch.func.jvp(of_one, (x,), (torch.ones_like(x),))
        with forward_ad.dual_level(), pytest.raises(ConfigError, match="no forward-mode derivative"):
            of_one(forward_ad.make_dual(x, torch.ones_like(x)))


@on_the_cpu
def test_the_loss_without_logits_refuses_tangents():
    refuses_each_tangent("linear_cross_entropy", *CROSS_ENTROPY, "cpu")


@on_the_cpu
def test_a_tangent_elsewhere_is_no_reason_to_refuse():
    op, sizes = CROSS_ENTROPY
    at = tensors(sizes, torch.float64, seed=1)
    x = torch.ones(())
    value, tangent = torch.func.jvp(lambda x: x * op(*at), (x,), (x,))
    assert tangent == value == op(*at)


@on_the_cpu
def test_a_compiler_sees_one_graph():
    op, sizes = CROSS_ENTROPY
    at = tensors(sizes, torch.float32, seed=1)
    assert torch.compile(op, fullgraph=True, backend="eager")(*at) == op(*at)


@with_kernels
@pytest.mark.parametrize("name", [*CASES, "linear_cross_entropy"])
def test_kernels_refuse_tangents(name):
    op, sizes = {**CASES, "linear_cross_entropy": CROSS_ENTROPY}[name]
    refuses_each_tangent(name.split()[0], partial(op, backend="triton"), sizes, DEVICE)
