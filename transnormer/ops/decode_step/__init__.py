"""One new token of either attention on a state that stays where it is: rotated, taken in, and answered.

q and k [B, 1, H, D] and v [B, 1, H, E] are as projected. `positions` [B] counts the tokens before this one;
`inverse_frequencies` [D/2] and `reflection` [D] are those of `rotate`: without the former there is no rotation. On CUDA
each function is one kernel: with few sequences a step is as long as its kernels are many. There is no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from transnormer.errors import ConfigError, did_you_mean
from transnormer.ops.autocast import in_range_of_sums
from transnormer.ops.backend import choose, load_kernel
from transnormer.ops.diag_attention import KINDS
from transnormer.ops.diag_attention.step import diag_attention_step
from transnormer.ops.feature_maps import feature_map_named
from transnormer.ops.norm_attention.step import attention_step_in_place
from transnormer.ops.rotate import check_rotation, rotate
from transnormer.ops.shapes import accumulation_dtype, check_are_tensors, check_heads, check_no_tangents

_KERNEL = load_kernel("decode_step")


def norm_decode_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    memory: Tensor,
    *,
    positions: Tensor,
    feature_map: str = "1+elu",
    inverse_frequencies: Tensor | None = None,
    reflection: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """One token of NormAttention: S ← S + φ(k)vᵀ in `memory` S [B, H, D, E] itself, and o = φ(q)S.

    Returns o [B, 1, H, E], as float32 for float16; q and k are [B, 1, H, D], v is [B, 1, H, E]. `positions` [B] counts
    the tokens before this one; it, `inverse_frequencies` [D/2] and `reflection` [D] are those of `rotate`.

    >>> import torch
    >>> q, k, v = (torch.randn(2, 1, 4, 16) for _ in range(3))
    >>> memory = torch.zeros(2, 4, 16, 16)
    >>> tn.ops.norm_decode_step(q, k, v, memory, positions=torch.tensor([0, 0])).shape
    torch.Size([2, 1, 4, 16])
    """
    phi = feature_map_named(feature_map)
    check_are_tensors("norm_decode_step", q=q, k=k, v=v, memory=memory, positions=positions)
    q, k, v = (in_range_of_sums(x) for x in (q, k, v))
    batch, heads = _check("norm_decode_step", q, k, v, positions, inverse_frequencies, reflection)
    if memory.shape != (batch, heads, q.shape[-1], v.shape[-1]):
        wanted = [batch, heads, q.shape[-1], v.shape[-1]]
        raise ConfigError(f"norm_decode_step: memory must be [B, H, D, E] = {wanted}, got {list(memory.shape)}")
    if memory.dtype != accumulation_dtype(q.dtype):
        raise ConfigError(
            f"norm_decode_step: memory must be {accumulation_dtype(q.dtype)} where q is {q.dtype}, got {memory.dtype}"
        )
    if not memory.is_contiguous():
        raise ConfigError("norm_decode_step: memory must be contiguous", "call contiguous() before the first step")
    if choose("decode_step", _KERNEL, backend, q.device, q=q, v=v, slots=None).backend == "triton":
        assert _KERNEL is not None
        check_no_tangents("norm_decode_step", q, k, v, memory, inverse_frequencies)
        return _KERNEL.norm_decode_step(q, k, v, memory, positions, inverse_frequencies, reflection, feature_map)
    if inverse_frequencies is None:
        q, k = phi(q), phi(k)
    else:
        at = positions[:, None]
        q, k = rotate(q, k, at, inverse_frequencies, feature_map=feature_map, reflection=reflection, backend=backend)
    return attention_step_in_place(q, k, v, memory)


def diag_decode_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    positions: Tensor,
    kind: str = "softmax",
    inverse_frequencies: Tensor | None = None,
    reflection: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """One token of DiagAttention: attention inside its block, whose keys and values take it in, in place.

    The block has S slots, `keys` and `values` [B, S, H, D], and the token, q, k and v [B, 1, H, D], is in that of its
    position % S. `positions` [B], `inverse_frequencies` [D/2] and `reflection` [D] are those of `rotate`. A block fills
    its slots from the first on: what lies behind the newest token is of the block before, and not seen.

    >>> import torch
    >>> q, k, v = (torch.randn(2, 1, 4, 16) for _ in range(3))
    >>> keys, values = torch.zeros(2, 64, 4, 16), torch.zeros(2, 64, 4, 16)
    >>> tn.ops.diag_decode_step(q, k, v, keys, values, positions=torch.tensor([0, 0])).shape
    torch.Size([2, 1, 4, 16])
    """
    if kind not in KINDS:
        raise ConfigError(f"diag_decode_step: unknown kind '{kind}'", did_you_mean(kind, KINDS))
    check_are_tensors("diag_decode_step", q=q, k=k, v=v, keys=keys, values=values, positions=positions)
    batch, heads = _check("diag_decode_step", q, k, v, positions, inverse_frequencies, reflection)
    for name, slots in (("keys", keys), ("values", values)):
        if slots.dim() != 4 or slots.shape != (batch, keys.shape[1], heads, q.shape[-1]) or v.shape != q.shape:
            raise ConfigError(
                f"diag_decode_step: {name} must be [B, S, H, D] = [{batch}, S, {heads}, {q.shape[-1]}], and v as q, "
                f"got {list(slots.shape)}, and v {list(v.shape)}"
            )
        if not slots.shape[1] or slots.dtype != q.dtype:
            got = f"{slots.shape[1]} of {slots.dtype}"
            raise ConfigError(f"diag_decode_step: {name} must have at least one slot, of {q.dtype} as q, got {got}")
        if slots.stride(-1) != 1:
            raise ConfigError(f"diag_decode_step: the numbers of one key or value must be neighbours in {name}")
    if choose("decode_step", _KERNEL, backend, q.device, q=q, v=v, slots=keys.shape[1]).backend == "triton":
        assert _KERNEL is not None
        check_no_tangents("diag_decode_step", q, k, v, keys, values, inverse_frequencies)
        return _KERNEL.diag_decode_step(q, k, v, keys, values, positions, inverse_frequencies, reflection, kind)
    index = (positions % keys.shape[1])[:, None]
    if inverse_frequencies is not None:
        q, k = rotate(q, k, index, inverse_frequencies, reflection=reflection, backend=backend)
    rows = torch.arange(batch, device=q.device)[:, None]
    keys[rows, index], values[rows, index] = k, v
    return diag_attention_step(
        q,
        keys,
        values,
        query_positions=index,
        key_positions=torch.arange(keys.shape[1], device=q.device)[None],
        block_size=keys.shape[1],
        kind=kind,
    )


def _check(
    op: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    inverse_frequencies: Tensor | None,
    reflection: Tensor | None,
) -> tuple[int, int]:
    """Batch and heads, or an error of `op` that names the argument and the shape it should have."""
    if q.dim() != 4 or q.shape[1] != 1 or q.shape != k.shape or v.shape[:3] != q.shape[:3]:
        shapes = ", ".join(str(list(x.shape)) for x in (q, k, v))
        raise ConfigError(f"{op}: q, k and v must be [B, 1, H, D] of one token each, got {shapes}")
    check_heads(op, q, k, v)
    if positions.shape != q.shape[:1] or positions.is_floating_point():
        got = f"{list(positions.shape)} {positions.dtype}"
        raise ConfigError(f"{op}: positions must be whole numbers [B] = [{q.shape[0]}], got {got}")
    if inverse_frequencies is not None:
        check_rotation(op, q, k, positions[:, None], inverse_frequencies, reflection)
    return q.shape[0], q.shape[2]
