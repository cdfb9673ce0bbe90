"""NormAttention with its norm: RMSNorm(φ(Q)(φ(K)ᵀV)) over all heads together (paper, equation of section 4.1)."""

from __future__ import annotations

from torch import Tensor

from transnormer.ops.autocast import matmul_dtype
from transnormer.ops.norm_attention import attention_for
from transnormer.ops.packed import PackedBounds
from transnormer.ops.rms_norm import rms_norm
from transnormer.ops.shapes import check_are_tensors


def normed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    feature_map: str = "1+elu",
    mask: Tensor | None = None,
    cu_seqlens: Tensor | PackedBounds | None = None,
    state: Tensor | None = None,
    return_state: bool = False,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    backend: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """NormAttention: RMSNorm(φ(Q)(φ(K)ᵀV)) over all heads of a token (paper, section 4.1); returns [B, T, H, E].

    The result has a root mean square of one. It neither grows with the sequence nor leaves the range of float16, and is
    rounded to the dtype of a matrix product. `weight` [H·E] is an optional gain. Arguments and state are otherwise
    those of `norm_attention`.

    >>> import torch
    >>> q, k, v = (torch.randn(1, 100, 4, 16) for _ in range(3))
    >>> tn.ops.normed_attention(q, k, v, causal=True).shape
    torch.Size([1, 100, 4, 16])
    >>> cu_seqlens = torch.tensor([0, 30, 100])  # two sequences, of 30 and of 70 tokens
    >>> packed, states = tn.ops.normed_attention(q, k, v, causal=True, cu_seqlens=cu_seqlens, return_state=True)
    >>> states.shape
    torch.Size([2, 4, 16, 16])
    """
    check_are_tensors("normed_attention", weight=weight)
    results = attention_for(
        "normed_attention",
        q,
        k,
        v,
        causal=causal,
        feature_map=feature_map,
        mask=mask,
        cu_seqlens=cu_seqlens,
        state=state,
        return_state=return_state,
        backend=backend,
    )
    out, new_state = results if isinstance(results, tuple) else (results, None)
    normed = rms_norm(out.flatten(-2), weight, eps, dtype=matmul_dtype(q), backend=backend).view(out.shape)
    return normed if new_state is None else (normed, new_state)
