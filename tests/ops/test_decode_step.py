"""A decode step against the parallel attention over the whole sequence, and its kernels in Triton's interpreter."""

from __future__ import annotations

import os
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from kernel_cases import FLOOR, relative

from transnormer.errors import ConfigError
from transnormer.ops import diag_attention, diag_decode_step, norm_attention, norm_decode_step, rotate
from transnormer.ops.backend import explain

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
# The interpreter computes with numpy, which has no bfloat16: float16 stands in for it.
HALF = torch.float16 if INTERPRETED else torch.bfloat16

on_the_cpu = pytest.mark.skipif(INTERPRETED, reason="this is the process for kernels")
with_kernels = pytest.mark.gpu if not INTERPRETED else pytest.mark.usefixtures("poisoned_empty")

ROTATIONS = ("none", "rope", "lrpe")


def rotation(kind: str, size: int, dtype: torch.dtype, device: str) -> dict[str, torch.Tensor | None]:
    generator = torch.Generator().manual_seed(size)
    inverse_frequencies, reflection = torch.rand(size // 2, generator=generator), torch.randn(size, generator=generator)
    reflection /= reflection.norm()
    return {
        "inverse_frequencies": None if kind == "none" else inverse_frequencies.to(device, dtype),
        "reflection": reflection.to(device, dtype) if kind == "lrpe" else None,
    }


def token(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float64, device: str = "cpu") -> list:
    """q, k and v of one token, as a packed projection leaves them: neighbours in memory."""
    batch, heads, size = shape
    packed = torch.randn(batch, 1, 3 * heads * size, generator=torch.Generator().manual_seed(seed))
    return [part.unflatten(-1, (heads, size)) for part in packed.to(device, dtype).chunk(3, dim=-1)]


@on_the_cpu
@pytest.mark.parametrize(("position", "feature_map"), product(ROTATIONS, ("1+elu", "elu")))
def test_steps_of_norm_attention_equal_the_parallel_form(position, feature_map):
    shape, length = (2, 3, 4), 9
    rotations = rotation(position, 4, torch.float64, "cpu")
    tokens = [token(shape, seed) for seed in range(length)]
    memory = torch.zeros(2, 3, 4, 4, dtype=torch.float64)
    steps = [
        norm_decode_step(*tokens[t], memory, positions=torch.full((2,), t), feature_map=feature_map, **rotations)
        for t in range(length)
    ]
    q, k, v = (torch.cat(parts, dim=1) for parts in zip(*tokens, strict=True))
    if rotations["inverse_frequencies"] is not None:
        q, k = rotate(q, k, torch.arange(length), feature_map=feature_map, **rotations)
        feature_map = "identity"
    whole, state = norm_attention(q, k, v, causal=True, feature_map=feature_map, return_state=True)
    torch.testing.assert_close(torch.cat(steps, dim=1), whole)
    torch.testing.assert_close(memory, state)


@on_the_cpu
@pytest.mark.parametrize(("position", "kind"), product(ROTATIONS, ("softmax", "rela")))
def test_steps_of_diag_attention_equal_the_parallel_form(position, kind):
    shape, length, block = (2, 3, 4), 14, 5
    rotations = rotation(position, 4, torch.float64, "cpu")
    tokens = [token(shape, seed) for seed in range(length)]
    keys, values = (torch.full((2, block, 3, 4), 7.0, dtype=torch.float64) for _ in range(2))  # of an older sequence
    steps = [
        diag_decode_step(*tokens[t], keys, values, positions=torch.full((2,), t), kind=kind, **rotations)
        for t in range(length)
    ]
    q, k, v = (torch.cat(parts, dim=1) for parts in zip(*tokens, strict=True))
    if rotations["inverse_frequencies"] is not None:
        q, k = rotate(q, k, torch.arange(length) % block, **rotations)
    whole = diag_attention(q, k, v, causal=True, block_size=block, kind=kind)
    torch.testing.assert_close(torch.cat(steps, dim=1), whole)


@on_the_cpu
def test_wrong_arguments_are_named():
    q, k, v = token((2, 3, 4), 0)
    memory, slots, positions = torch.zeros(2, 3, 4, 4), torch.zeros(2, 8, 3, 4), torch.zeros(2, dtype=torch.long)
    with pytest.raises(ConfigError, match=r"memory must be torch.float64 where q is torch.float64, got torch.float32"):
        norm_decode_step(q, k, v, memory, positions=positions)
    memory = memory.double()
    with pytest.raises(ConfigError, match=r"one dtype, got torch.float64, torch.float64, torch.float32"):
        norm_decode_step(q, k, v.float(), memory, positions=positions)
    with pytest.raises(ConfigError, match="there must be a head, with a column"):
        norm_decode_step(q[..., :0], k[..., :0], v, memory[:, :, :0], positions=positions)
    with pytest.raises(ConfigError, match=r"memory must be \[B, H, D, E\] = \[2, 3, 4, 4\], got \[2, 3, 4, 5\]"):
        norm_decode_step(q, k, v, torch.zeros(2, 3, 4, 5), positions=positions)
    with pytest.raises(ConfigError, match=r"one token each, got \[2, 2, 3, 4\]"):
        norm_decode_step(q.repeat(1, 2, 1, 1), k, v, memory, positions=positions)
    with pytest.raises(ConfigError, match=r"positions must be whole numbers \[B\] = \[2\], got \[3\]"):
        norm_decode_step(q, k, v, memory, positions=torch.zeros(3, dtype=torch.long))
    with pytest.raises(ConfigError, match=r"must be whole numbers \[B\] = \[2\], got \[2\] torch.float32"):
        norm_decode_step(q, k, v, memory, positions=torch.zeros(2))
    with pytest.raises(ConfigError, match="as q, got 8 of torch"):
        diag_decode_step(q, k, v, slots, slots, positions=positions)
    slots = slots.double()
    with pytest.raises(ConfigError, match="keys must have at least one slot"):
        diag_decode_step(q, k, v, slots[:, :0], slots[:, :0], positions=positions)
    with pytest.raises(ConfigError, match=r"inverse_frequencies must be \[D/2\] = \[2\]"):
        norm_decode_step(q, k, v, memory, positions=positions, inverse_frequencies=torch.zeros(4))
    with pytest.raises(ConfigError, match=r"values must be \[B, S, H, D\] = \[2, S, 3, 4\]"):
        diag_decode_step(q, k, v, slots, slots[:, :5], positions=positions)
    with pytest.raises(ConfigError, match="memory must be contiguous"):
        norm_decode_step(q, k, v, memory.mT, positions=positions)
    with pytest.raises(ConfigError, match="must be neighbours in keys"):
        diag_decode_step(q, k, v, torch.zeros(2, 8, 4, 3, dtype=torch.float64).mT, slots, positions=positions)
    with pytest.raises(ConfigError, match="unknown kind 'sofmax'"):
        diag_decode_step(q, k, v, slots, slots, positions=positions, kind="sofmax")
    assert "a block of 512 tokens is above 128" in explain("decode_step", "cuda", slots=512).reason


def check_step(step, inputs: list, state: list, **options) -> None:
    """The kernel is as near to float64 as PyTorch in the same dtype, in what it returns and what it leaves behind."""

    def run(dtype: torch.dtype | None, backend: str) -> list[torch.Tensor]:
        def precise(x):
            return x.to(dtype or x.dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x

        states = [precise(x).clone() for x in state]
        told = {name: precise(value) for name, value in options.items()}
        return [step(*map(precise, inputs), *states, **told, backend=backend), *states]

    exact, ours, theirs = run(torch.float64, "torch"), run(None, "triton"), run(None, "torch")
    # Of one token PyTorch may hit a number by luck: half a unit in the last place is as good.
    floor = max(FLOOR, torch.finfo(inputs[0].dtype).eps / 2)
    for index, (a, b, c) in enumerate(zip(ours, theirs, exact, strict=True)):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert a.isfinite().all(), f"result {index} is not finite"
        allowed = max(2 * relative(b.double() - c, c), floor)
        found = relative(a.double() - c, c)
        assert found <= allowed, f"result {index}: kernel {found:.2e}, PyTorch allows {allowed:.2e}"


SHAPES = [(2, 3, 16), (1, 2, 20)] if INTERPRETED else [(2, 3, 16), (1, 8, 64), (5, 2, 32), (3, 4, 96), (2, 2, 128)]


@with_kernels
@pytest.mark.parametrize(
    ("shape", "feature_map", "more"),
    [*product(SHAPES, ("1+elu", "elu"), (0,)), *product(SHAPES[:4], ("1+elu",), (1,))],
)
@pytest.mark.parametrize(("dtype", "position"), product((HALF, torch.float32), ROTATIONS))
def test_norm_kernel(shape, feature_map, more, dtype, position):
    batch, heads, size = shape
    q, k, v = token(shape, 1, dtype, DEVICE)
    v = F.pad(v, (0, more), value=1.0)  # a column for a denominator
    memory = torch.randn(batch, heads, size, size + more, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    rotations = rotation(position, size, dtype, DEVICE)
    positions = torch.tensor([0, 1, 63, 700, 100_000], device=DEVICE)[-batch:]
    check_step(norm_decode_step, [q, k, v], [memory], positions=positions, feature_map=feature_map, **rotations)


@with_kernels
@pytest.mark.parametrize(("shape", "dtype", "position"), product(SHAPES, (HALF, torch.float32), ROTATIONS))
@pytest.mark.parametrize(("kind", "block"), [("softmax", 64), ("rela", 64), ("softmax", 20), ("rela", 128)])
def test_diag_kernel(shape, dtype, position, kind, block):
    batch, heads, size = shape
    generator = torch.Generator().manual_seed(3)
    # As `FixedState` lays them out: the tokens of a head lie together.
    slots = [
        torch.randn(batch, heads, block, size, generator=generator).to(DEVICE, dtype).transpose(1, 2) for _ in "kv"
    ]
    rotations = rotation(position, size, dtype, DEVICE)
    for last in (0, block - 1, 7 * block + 3):
        positions = torch.arange(last, last + batch, device=DEVICE)
        check_step(
            diag_decode_step, token(shape, last, dtype, DEVICE), slots, positions=positions, kind=kind, **rotations
        )


@with_kernels
@pytest.mark.parametrize("kind", ["softmax", "rela"])
def test_what_lies_behind_the_newest_token_is_not_read(kind):
    keys, values = (torch.full((2, 16, 2, 16), torch.nan, dtype=HALF, device=DEVICE) for _ in range(2))
    positions = torch.zeros(2, dtype=torch.long, device=DEVICE)
    inputs = token((2, 2, 16), 0, HALF, DEVICE)
    out = diag_decode_step(*inputs, keys, values, positions=positions, kind=kind, backend="triton")
    assert out.isfinite().all()
    assert all(slots[:, 1:].isnan().all() for slots in (keys, values))


@with_kernels
def test_kernels_refuse_tangents():
    q, k, v = token((1, 2, 16), 0, HALF, DEVICE)
    positions = torch.zeros(1, dtype=torch.long, device=DEVICE)
    slots = torch.zeros(1, 16, 2, 16, dtype=HALF, device=DEVICE)
    memory = torch.zeros(1, 2, 16, 16, device=DEVICE)

    def norm(v):
        return norm_decode_step(q, k, v, memory, positions=positions, backend="triton")

    def diag(v):
        return diag_decode_step(q, k, v, slots, slots.clone(), positions=positions, backend="triton")

    for step in (norm, diag):
        with pytest.raises(ConfigError, match="no forward-mode derivative"):
            torch.func.jvp(step, (v,), (torch.ones_like(v),))
