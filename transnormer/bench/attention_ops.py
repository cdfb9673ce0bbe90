"""Each attention as a mixer uses it: feature map, attention, and the norm over all heads if it has one.

This is the one place that says what is timed and what every contender must compute: `attention_op`; and `folded_op`,
which leaves of the norm only the sums of squares, because a scale of rows commutes with the output projection that
follows: Linear(o / rms(o)) = Linear(o) / rms(o). Compiled inference does that, training does not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transnormer.bench.cases import DIAG_CASES, FULL_SOFTMAX, NORM_CASES, PACKED, PACKED_CASES
from transnormer.ops import PackedBounds, diag_attention, norm_attention, normed_attention, packed_bounds, rms_norm

Op = Callable[..., Tensor]  # q, k, v [B, T, H, D] -> [B, T, H, D], or [B, T, H·D] after a norm
FoldedOp = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # -> [B, T, H, D] and Σo² [B, T, H]
BLOCK = 64  # of DiagAttention, as in the paper
_EPSILON = 1e-6  # of rms_norm


def attention_op(case: str, backend: str) -> Op:
    """The op of a case on one backend of ours; `torch` is also the definition that every contender is held to."""
    if case == FULL_SOFTMAX:
        return full_softmax
    if case in PACKED_CASES and backend == "triton":
        return packed_rows(case.removesuffix(PACKED), backend)
    case = case.removesuffix(PACKED)
    if case in NORM_CASES:
        return partial(_norm, causal=NORM_CASES[case], backend=backend)
    kind, causal = DIAG_CASES[case]
    return partial(_diag, kind=kind, causal=causal, backend=backend)


def packed_rows(case: str, backend: str) -> Op:
    """The op of a case on rows that lie one behind the other, packed; it must give what they give apart.

    As in the layers of a model, where the row's bounds are known, and were checked once for all of them.
    """
    op = attention_op(case, backend)

    def of_one_row(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # Views, backward too: out[0] would have a backward that fills and copies a tensor, which no layer does.
        one_row = [x.flatten(0, 1).unsqueeze(0) for x in (q, k, v)]
        out = op(*one_row, cu_seqlens=_bounds_of_rows(*q.shape[:2], q.device))
        return out.squeeze(0).unflatten(0, q.shape[:2])

    return of_one_row


@cache
def _bounds_of_rows(batch: int, length: int, device: torch.device) -> PackedBounds:
    row = torch.empty(1, batch * length, device=device)
    return packed_bounds(torch.arange(0, row.numel() + 1, length), row)


def _norm(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, backend: str, cu_seqlens: PackedBounds | None = None
) -> Tensor:
    out = normed_attention(q, k, v, causal=causal, cu_seqlens=cu_seqlens, backend=backend)
    assert isinstance(out, Tensor)
    return out.flatten(-2)


def _diag(
    q: Tensor, k: Tensor, v: Tensor, *, kind: str, causal: bool, backend: str, cu_seqlens: PackedBounds | None = None
) -> Tensor:
    out = diag_attention(q, k, v, causal=causal, block_size=BLOCK, kind=kind, cu_seqlens=cu_seqlens, backend=backend)
    assert isinstance(out, Tensor)
    return rms_norm(out.flatten(-2), backend=backend) if kind == "rela" else out


def folded_op(case: str, backend: str) -> FoldedOp | None:
    """The op of a case with its norm left to the output projection; None for those without a norm."""
    attend: Callable[..., Any]
    if case in NORM_CASES:
        attend = partial(norm_attention, causal=NORM_CASES[case])
    elif case in DIAG_CASES and DIAG_CASES[case][0] == "rela":
        attend = partial(diag_attention, causal=DIAG_CASES[case][1], block_size=BLOCK, kind="rela")
    else:
        return None

    def op(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        results = attend(q, k, v, return_square_sums=True, backend=backend)
        assert isinstance(results, tuple)
        out, squares = results
        return out, squares

    return op


def unfolded(op: FoldedOp) -> Op:
    """A folded op with its norm: what it must agree with `attention_op` in."""

    def normed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, squares = op(q, k, v)
        out = out.flatten(-2)
        scale = torch.rsqrt(squares.sum(dim=-1, keepdim=True) / out.shape[-1] + _EPSILON)
        return (out * scale).to(out.dtype)

    return normed


def full_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(QKᵀ/√D)V over everything before, by PyTorch's own choice of kernel."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
