"""Rotation of queries and keys by their positions: RoPE (Su et al. 2021), LRPE (Qin et al. 2023), with φ before it."""

from __future__ import annotations

import torch
from torch import Tensor

from transnormer.errors import ConfigError
from transnormer.ops.backend import choose, load_kernel
from transnormer.ops.feature_maps import feature_map_named
from transnormer.ops.rotate.pairs import reflect, rotate_by
from transnormer.ops.shapes import accumulation_dtype, check_are_tensors, check_no_tangents

_KERNEL = load_kernel("rotate")


def rotate(
    q: Tensor,
    k: Tensor,
    positions: Tensor,
    inverse_frequencies: Tensor,
    *,
    feature_map: str = "identity",
    reflection: Tensor | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """RoPE and LRPE: φ(q) and φ(k) [B, T, H, D], their features rotated pair by pair as positions say.

    LRPE's reflect them before that, along `reflection` [D] (Householder). The angles are positions ·
    inverse_frequencies. `positions` are whole numbers, [T] or [B, T]; the inverse frequencies [D/2] may be learned, the
    reflection may not. Everything is computed in float32 (float64 for float64 tensors) and rounded once.

    >>> import torch
    >>> q, k = torch.randn(2, 10, 4, 16), torch.randn(2, 10, 4, 16)
    >>> frequencies = 10000 ** (-torch.arange(8) / 8)
    >>> q_rotated, k_rotated = tn.ops.rotate(q, k, torch.arange(10), frequencies)
    >>> torch.allclose(q_rotated.norm(dim=-1), q.norm(dim=-1), rtol=1e-4)
    True
    """
    check_rotation("rotate", q, k, positions, inverse_frequencies, reflection)
    phi = feature_map_named(feature_map)
    # The kernel serves compiled models too: between a projection and an attention there is nothing to fuse with, and
    # a compiler would take the cosines once per number instead of once per position, and several passes backward.
    if choose("rotate", _KERNEL, backend, q.device, q=q, k=k).backend == "triton":
        assert _KERNEL is not None
        check_no_tangents("rotate", q, k, inverse_frequencies)
        results: tuple[Tensor, Tensor] = _KERNEL.rotate(
            q, k, positions, inverse_frequencies, feature_map=feature_map, reflection=reflection
        )
        return results
    # Positions reach tens of thousands: their angles need float32 even where everything else is bfloat16.
    precise = accumulation_dtype(torch.promote_types(q.dtype, inverse_frequencies.dtype))
    angles = positions[..., None].to(precise) * inverse_frequencies.to(precise)
    angles = angles.unsqueeze(-2)  # the same for all heads
    cos, sin = angles.cos(), angles.sin()

    def rotated(x: Tensor) -> Tensor:
        features = phi(x.to(accumulation_dtype(x.dtype)))
        if reflection is not None:
            features = reflect(features, reflection.to(features.dtype))
        return rotate_by(features, cos, sin).to(x.dtype)

    return rotated(q), rotated(k)


def check_rotation(
    op: str, q: Tensor, k: Tensor, positions: Tensor, inverse_frequencies: Tensor, reflection: Tensor | None
) -> None:
    """An error of `op` that names the argument and the shape it should have."""
    check_are_tensors(op, q=q, k=k, positions=positions, inverse_frequencies=inverse_frequencies, reflection=reflection)
    if q.dim() != 4 or q.shape != k.shape or q.dtype != k.dtype:
        raise ConfigError(
            f"{op}: q and k must be [B, T, H, D] of one shape and dtype, "
            f"got {list(q.shape)} {q.dtype} and {list(k.shape)} {k.dtype}"
        )
    size = q.shape[-1]
    if size % 2:
        raise ConfigError(f"{op}: features are rotated in pairs, and head size {size} is odd")
    # Not `in`: PyTorch 2.13's compiler takes it for False where one of two equal sizes is dynamic. And by the number of
    # dimensions first: [T] against [B, T] would ask whether T is B, which an exported program may not.
    if positions.dim() not in (1, 2) or positions.shape != q.shape[2 - positions.dim() : 2]:
        raise ConfigError(
            f"{op}: positions must be [T] = [{q.shape[1]}] or [B, T] = {list(q.shape[:2])}, got {list(positions.shape)}"
        )
    if inverse_frequencies.shape != (size // 2,):
        got = list(inverse_frequencies.shape)
        raise ConfigError(f"{op}: inverse_frequencies must be [D/2] = [{size // 2}], got {got}")
    if reflection is not None and reflection.shape != (size,):
        raise ConfigError(f"{op}: reflection must be [D] = [{size}], got {list(reflection.shape)}")
