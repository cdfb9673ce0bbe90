"""NormAttention without its norm: φ(Q)(φ(K)ᵀV), no denominator, linear in T (paper, section 4.1).

The result is not normalised and grows with T: it wants a norm behind it. XNorm lives in the mixer, because it runs over
all heads; `ops.normed_attention` is both in one call.
"""

from __future__ import annotations

import torch
from torch import Tensor

from transnormer.errors import ConfigError
from transnormer.ops.autocast import in_range_of_sums, without_autocast
from transnormer.ops.backend import choose, load_kernel
from transnormer.ops.feature_maps import feature_map_named
from transnormer.ops.norm_attention.chunked import bidirectional_attention, causal_attention
from transnormer.ops.norm_attention.step import attention_step
from transnormer.ops.packed import PackedBounds, checked_bounds, sequences
from transnormer.ops.shapes import (
    accumulation_dtype,
    check_are_tensors,
    check_no_tangents,
    check_qkv,
    check_tensors,
    square_sums,
    zero_padding,
)

_KERNEL = load_kernel("norm_attention")


def norm_attention(
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
    return_square_sums: bool = False,
    backend: str | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """NormAttention without its norm: φ(Q)(φ(K)ᵀV), linear in T (paper, section 4.1).

    q and k are [B, T, H, D], v is [B, T, H, E]; returns [B, T, H, E], then what else was asked for. The result is not
    normalised: its size grows with the number of tokens, to thousands at T = 4,000. Take `normed_attention` for the
    result that layers can use, or follow this by `rms_norm` over all heads.

    The dtype is that of a matrix product: under autocast q, k and v are rounded to autocast's, and so is the result.
    float16 alone is computed and returned as float32, because such sums leave its range (65,504).

    `mask` [B, T] (1 = real): a padded key never contributes, a padded position's output is zero. `state` [B, H, D, E]
    is Σφ(k)vᵀ over the tokens before these, in float32 (float64 for float64 inputs); the returned one includes them.
    `cu_seqlens` [N + 1]: the one row (B = 1) is N sequences, packed; none sees another, and states are [N, H, D, E].
    The square sums Σo² [B, T, H], in the dtype of the state, are what an RMSNorm over all heads divides by.

    >>> import torch
    >>> q, k, v = (torch.randn(2, 100, 4, 16) for _ in range(3))
    >>> far, state = tn.ops.norm_attention(q, k, v, causal=True, return_state=True)
    >>> far.shape, state.shape
    (torch.Size([2, 100, 4, 16]), torch.Size([2, 4, 16, 16]))
    """
    return attention_for(
        "norm_attention",
        q,
        k,
        v,
        causal=causal,
        feature_map=feature_map,
        mask=mask,
        cu_seqlens=cu_seqlens,
        state=state,
        return_state=return_state,
        return_square_sums=return_square_sums,
        backend=backend,
    )


def attention_for(
    op: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    feature_map: str,
    mask: Tensor | None,
    cu_seqlens: Tensor | PackedBounds | None,
    state: Tensor | None,
    return_state: bool,
    backend: str | None,
    return_square_sums: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """`norm_attention` for the op that was called, which errors name."""
    check_tensors(op, q=q, k=k, v=v)
    q, k, v = (in_range_of_sums(x) for x in (q, k, v))
    check_qkv(op, q, k, v, mask)
    feature_map_named(feature_map)
    bounds = None if cu_seqlens is None else checked_bounds(op, cu_seqlens, q, mask)
    if state is not None:
        check_are_tensors(op, state=state)
        count = q.shape[0] if bounds is None else len(bounds.cu_seqlens) - 1
        expected = (count, q.shape[2], q.shape[3], v.shape[3])
        if tuple(state.shape) != expected:
            raise ConfigError(f"{op}: state must be [B, H, D, E] = {list(expected)}, got {list(state.shape)}")
        state = state.to(accumulation_dtype(q.dtype))

    new_state: Tensor | None = None
    sums: Tensor | None = None
    with without_autocast(q.device):  # which would round float32 sums back to half precision
        choice = choose("norm_attention", _KERNEL, backend, q.device, q=q, k=k, v=v, mask=mask, causal=causal)
        if choice.backend == "triton":
            assert _KERNEL is not None
            check_no_tangents(op, q, k, v, state)
            out, new_state, sums = _KERNEL.norm_attention(
                q,
                k,
                v,
                causal=causal,
                feature_map=feature_map,
                mask=mask,
                bounds=bounds,
                state=state,
                return_state=return_state,
                square_sums=return_square_sums and not torch.is_grad_enabled(),
            )
        elif bounds is None:
            out, new_state = _attended(q, k, v, causal, feature_map, mask, state)
        else:
            results = [
                _attended(*sequence, causal, feature_map, None, None if state is None else state[n : n + 1])
                for n, sequence in enumerate(sequences(bounds.cu_seqlens, q, k, v))
            ]
            out, new_state = torch.cat([out for out, _ in results], dim=1), torch.cat([new for _, new in results])
    if return_square_sums and sums is None:
        sums = square_sums(out)
    asked = [*([new_state] if return_state else []), *([sums] if return_square_sums else [])]
    return (out, *(x for x in asked if x is not None)) if asked else out


def _attended(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, feature_map: str, mask: Tensor | None, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The output and the new state, in plain PyTorch."""
    phi = feature_map_named(feature_map)
    # φ(0) need not be zero, but all sums over tokens have v as a factor.
    q, k, v = (zero_padding(x, mask) for x in (q, k, v))
    q, k = phi(q), phi(k)
    if not causal:
        attend = bidirectional_attention
    else:
        attend = attention_step if q.shape[1] == 1 else causal_attention
    out, new_state = attend(q, k, v, state)
    return zero_padding(out, mask), new_state
