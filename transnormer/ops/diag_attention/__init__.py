"""DiagAttention: softmax or ReLU attention inside non-overlapping blocks (paper, section 4.2), linear in T."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from transnormer.errors import ConfigError, did_you_mean
from transnormer.ops.autocast import in_autocast_dtype
from transnormer.ops.backend import choose, load_kernel
from transnormer.ops.diag_attention.chunked import block_attention
from transnormer.ops.packed import PackedBounds, checked_bounds, sequences
from transnormer.ops.shapes import (
    check_block_size,
    check_dropout,
    check_no_tangents,
    check_qkv,
    check_tensors,
    square_sums,
    zero_padding,
)

KINDS = ("softmax", "rela")

_KERNEL = load_kernel("diag_attention")


def diag_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    block_size: int = 64,
    kind: str = "softmax",
    mask: Tensor | None = None,
    cu_seqlens: Tensor | PackedBounds | None = None,
    dropout_p: float = 0.0,
    return_square_sums: bool = False,
    backend: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """DiagAttention: softmax(QKᵀ/√D)V where a token sees only its own block, linear in T (paper, section 4.2).

    q and k are [B, T, H, D], v is [B, T, H, E]; returns [B, T, H, E].
    `kind` is `softmax` (T2) or `rela`, ReLU(QKᵀ/√D) without a denominator (T1). Blocks start at position 0; the last
    one may be short. `mask` [B, T] (1 = real): a padded key is never seen, a padded position's output is zero.
    `cu_seqlens` [N + 1]: the one row (B = 1) is N sequences, packed; blocks start anew with each of them.
    The square sums Σo² [B, T, H], in float32, are what an RMSNorm over all heads divides by. The dtype is that of a
    matrix product: under autocast q, k and v are rounded to autocast's, and so is the result.

    >>> import torch
    >>> q, k, v = (torch.randn(2, 100, 4, 16) for _ in range(3))
    >>> tn.ops.diag_attention(q, k, v, causal=True, block_size=32).shape
    torch.Size([2, 100, 4, 16])
    """
    check_tensors("diag_attention", q=q, k=k, v=v)
    q, k, v = (in_autocast_dtype(x) for x in (q, k, v))
    check_qkv("diag_attention", q, k, v, mask)
    if kind not in KINDS:
        raise ConfigError(f"diag_attention: unknown kind '{kind}'", did_you_mean(kind, KINDS))
    check_block_size("diag_attention", block_size)
    check_dropout("diag_attention", dropout_p)
    bounds = None if cu_seqlens is None else checked_bounds("diag_attention", cu_seqlens, q, mask)
    call = {"q": q, "k": k, "v": v, "mask": mask, "causal": causal, "block_size": block_size}
    if choose("diag_attention", _KERNEL, backend, q.device, **call).backend == "triton":
        assert _KERNEL is not None
        check_no_tangents("diag_attention", q, k, v)
        out, sums = _KERNEL.diag_attention(
            q,
            k,
            v,
            causal=causal,
            block_size=block_size,
            kind=kind,
            mask=mask,
            bounds=bounds,
            dropout_p=dropout_p,
            square_sums=return_square_sums and not torch.is_grad_enabled(),
        )
    else:
        q, k, v = (zero_padding(x, mask) for x in (q, k, v))  # a score of NaN stays one behind any mask
        attend = partial(
            block_attention, causal=causal, block_size=block_size, kind=kind, mask=mask, dropout_p=dropout_p
        )
        if bounds is None:
            out = attend(q, k, v)
        else:
            out = torch.cat([attend(*sequence) for sequence in sequences(bounds.cu_seqlens, q, k, v)], dim=1)
        out, sums = zero_padding(out, mask), None
    if not return_square_sums:
        return out
    return out, square_sums(out) if sums is None else sums
