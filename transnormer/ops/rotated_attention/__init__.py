"""Rotation and attention, of packed queries, keys and values where a projection made them in one product.

Either of the paper's attentions behind `rotate`: the one place that decides what is fused. Of packed QKV one op can
write the gradients of queries, keys and values side by side, as the backward of the projection takes them; apart they
would have to be copied there. Where the backward does not want them, queries and keys are rotated as the attention
reads them, and never lie in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transnormer.errors import ConfigError, did_you_mean
from transnormer.ops.autocast import in_autocast_dtype, in_range_of_sums, without_autocast
from transnormer.ops.backend import choose, load_kernel
from transnormer.ops.diag_attention import diag_attention
from transnormer.ops.feature_maps import feature_map_named
from transnormer.ops.norm_attention import attention_for
from transnormer.ops.packed import PackedBounds, checked_bounds
from transnormer.ops.rotate import check_rotation, rotate
from transnormer.ops.shapes import (
    check_are_tensors,
    check_block_size,
    check_dropout,
    check_no_tangents,
    check_qkv,
    check_tensors,
    square_sums,
)

KINDS = ("norm", "softmax", "rela")
QKV = Tensor | tuple[Tensor, Tensor, Tensor]  # packed [B, T, 3, H, D], or q, k and v, each [B, T, H, D]

_KERNEL = load_kernel("rotated_attention")


class Attended(NamedTuple):
    """The output [B, T, H, D]; the state [B, H, D, D] and the square sums [B, T, H] of the output if asked for."""

    out: Tensor
    state: Tensor | None = None
    square_sums: Tensor | None = None


def unpacked(qkv: QKV) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v, each [B, T, H, D]."""
    if isinstance(qkv, tuple):
        return qkv
    q, k, v = qkv.unbind(dim=2)
    return q, k, v


def dtype_of(qkv: QKV) -> torch.dtype:
    """The one dtype of queries, keys and values."""
    return qkv[2].dtype if isinstance(qkv, tuple) else qkv.dtype


def rotated_attention(
    qkv: QKV,
    positions: Tensor,
    inverse_frequencies: Tensor | None = None,
    *,
    kind: str,
    causal: bool,
    reflection: Tensor | None = None,
    feature_map: str = "identity",
    mask: Tensor | None = None,
    cu_seqlens: Tensor | PackedBounds | None = None,
    state: Tensor | None = None,
    return_state: bool = False,
    block_size: int = 64,
    dropout_p: float = 0.0,
    return_square_sums: bool = False,
    backend: str | None = None,
) -> Attended:
    """NormAttention or DiagAttention of φ(Q), φ(K) and V, queries and keys rotated by their positions.

    `qkv` is packed [B, T, 3, H, D], or q, k and v, each [B, T, H, D]; the output is [B, T, H, D], the state that
    `return_state` asks for [B, H, D, D].
    `kind` is `norm` (NormAttention without its norm, which may carry a state), or `softmax` or `rela` (DiagAttention in
    blocks of `block_size`, with dropout). Positions, inverse frequencies and reflection are those of `rotate`; without
    inverse frequencies there is no rotation. Mask, cu_seqlens, state and square sums are those of the attentions.

    >>> import torch
    >>> qkv = tuple(torch.randn(2, 100, 4, 16) for _ in range(3))
    >>> frequencies = 10000 ** (-torch.arange(8) / 8)
    >>> tn.ops.rotated_attention(qkv, torch.arange(100), frequencies, kind="softmax", causal=True).out.shape
    torch.Size([2, 100, 4, 16])
    """
    _check_tensors(qkv, positions)
    qkv = _in_dtype(qkv, in_range_of_sums if kind == "norm" else in_autocast_dtype)
    q, k, v = _checked(qkv, positions, kind, inverse_frequencies, reflection, mask, block_size, dropout_p)
    phi = feature_map_named(feature_map)
    carries = state is not None or return_state
    if carries and kind != "norm":
        raise ConfigError(f"rotated_attention: kind '{kind}' carries no state", "NormAttention does: kind='norm'")
    bounds = None if cu_seqlens is None else checked_bounds("rotated_attention", cu_seqlens, q, mask)
    if not isinstance(qkv, tuple) and inverse_frequencies is not None and not carries:
        call = {"q": q, "k": k, "v": v, "mask": mask, "causal": causal, "block_size": block_size, "kind": kind}
        with without_autocast(qkv.device):  # what is float32 by now stays it
            choice = choose("rotated_attention", _KERNEL, backend, qkv.device, **call)
        if choice.backend == "triton":
            assert _KERNEL is not None
            check_no_tangents("rotated_attention", qkv, inverse_frequencies)
            out, sums = _KERNEL.rotated_attention(
                qkv,
                positions,
                inverse_frequencies,
                kind=kind,
                causal=causal,
                feature_map=feature_map,
                reflection=reflection,
                mask=mask,
                bounds=bounds,
                block_size=block_size,
                dropout_p=dropout_p,
                square_sums=return_square_sums and not torch.is_grad_enabled(),
            )
            return Attended(out, None, square_sums(out) if return_square_sums and sums is None else sums)
    if inverse_frequencies is not None:
        q, k = rotate(
            q, k, positions, inverse_frequencies, feature_map=feature_map, reflection=reflection, backend=backend
        )
        feature_map = "identity"
    options: dict[str, Any] = {
        "causal": causal,
        "mask": mask,
        "cu_seqlens": bounds,
        "return_square_sums": return_square_sums,
        "backend": backend,
    }
    if kind == "norm":  # applies φ itself as it reads
        carried: dict[str, Any] = {"state": state, "return_state": return_state}
        results = attention_for("rotated_attention", q, k, v, feature_map=feature_map, **carried, **options)
    else:
        if inverse_frequencies is None:
            q, k = phi(q), phi(k)
        results = diag_attention(q, k, v, block_size=block_size, kind=kind, dropout_p=dropout_p, **options)
    out, *rest = results if isinstance(results, tuple) else (results,)
    return Attended(out, rest[0] if return_state else None, rest[-1] if return_square_sums else None)


def _check_tensors(qkv: QKV, positions: Tensor) -> None:
    """Queries, keys and values are tensors of floats, whether apart or packed."""
    if not isinstance(qkv, tuple):
        check_tensors("rotated_attention", qkv=qkv)
    elif len(qkv) != 3:
        raise ConfigError(f"rotated_attention: a tuple qkv has q, k and v, got {len(qkv)}")
    else:
        q, k, v = qkv
        check_tensors("rotated_attention", q=q, k=k, v=v)
    check_are_tensors("rotated_attention", positions=positions)


def _in_dtype(qkv: QKV, convert: Callable[[Tensor], Tensor]) -> QKV:
    """Queries, keys and values in the dtype that the attention computes in."""
    if isinstance(qkv, tuple):
        q, k, v = (convert(x) for x in qkv)
        return q, k, v
    return convert(qkv)


def _checked(
    qkv: QKV,
    positions: Tensor,
    kind: str,
    inverse_frequencies: Tensor | None,
    reflection: Tensor | None,
    mask: Tensor | None,
    block_size: int,
    dropout_p: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v, or an error that names the argument."""
    if not isinstance(qkv, tuple) and (qkv.dim() != 5 or qkv.shape[2] != 3):
        raise ConfigError(f"rotated_attention: qkv must be [B, T, 3, H, D], got {list(qkv.shape)}")
    if kind not in KINDS:
        raise ConfigError(f"rotated_attention: unknown kind '{kind}'", did_you_mean(kind, KINDS))
    q, k, v = unpacked(qkv)
    check_qkv("rotated_attention", q, k, v, mask)
    if inverse_frequencies is not None:
        check_rotation("rotated_attention", q, k, positions, inverse_frequencies, reflection)
    check_block_size("rotated_attention", block_size)
    check_dropout("rotated_attention", dropout_p)
    return q, k, v
