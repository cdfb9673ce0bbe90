"""Rotation and attention of a joined projection of queries, keys and values, whose gradient is joined as well.

What `rotate` and one of the two attentions do one after the other. As one op it can write the gradients of queries,
keys and values side by side, as the projection's matrix products take them; apart they would have to be copied there.
Where the backward does not want them, queries and keys are turned as the attention reads them.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from transnormer.errors import ConfigError, did_you_mean
from transnormer.ops.backend import choose, load_kernel
from transnormer.ops.diag_attention import diag_attention
from transnormer.ops.feature_maps import feature_map_named
from transnormer.ops.norm_attention import norm_attention
from transnormer.ops.rotate import check_rotation, rotate
from transnormer.ops.shapes import check_block_size, check_dropout, check_no_tangents, check_qkv

KINDS = ("norm", "softmax", "rela")

_KERNEL = load_kernel("rotated_attention")


def rotated_attention(
    qkv: Tensor,
    positions: Tensor,
    rates: Tensor,
    *,
    kind: str,
    causal: bool,
    feature_map: str = "identity",
    reflection: Tensor | None = None,
    mask: Tensor | None = None,
    block_size: int = 64,
    dropout_p: float = 0.0,
    return_square_sums: bool = False,
    backend: str | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Attention of qkv [B, T, 3, H, D], with φ applied to queries and keys and both turned; returns [B, T, H, D].

    `kind` is `norm` (NormAttention without its norm), or `softmax` or `rela` (DiagAttention in blocks of `block_size`,
    with dropout). Positions, rates and reflection are those of `rotate`, the mask and the square sums [B, T, H] those
    of the attentions.
    """
    if qkv.dim() != 5 or qkv.shape[2] != 3:
        raise ConfigError(f"rotated_attention: qkv must be [B, T, 3, H, D], got {list(qkv.shape)}")
    if kind not in KINDS:
        raise ConfigError(f"rotated_attention: unknown kind '{kind}'", did_you_mean(kind, KINDS))
    feature_map_named(feature_map)
    q, k, v = qkv.unbind(dim=2)
    check_qkv("rotated_attention", q, k, v, mask)
    check_rotation("rotated_attention", q, k, positions, rates, reflection)
    check_block_size("rotated_attention", block_size)
    check_dropout("rotated_attention", dropout_p)
    call = {"q": q, "k": k, "v": v, "mask": mask, "causal": causal, "block_size": block_size, "kind": kind}
    if choose("rotated_attention", _KERNEL, backend, qkv.device, **call).backend == "triton":
        assert _KERNEL is not None
        check_no_tangents("rotated_attention", qkv, rates)
        out, square_sums = _KERNEL.rotated_attention(
            qkv,
            positions,
            rates,
            kind=kind,
            causal=causal,
            feature_map=feature_map,
            reflection=reflection,
            mask=mask,
            block_size=block_size,
            dropout_p=dropout_p,
            square_sums=return_square_sums,
        )
        return out if square_sums is None else (out, square_sums)
    q, k = rotate(q, k, positions, rates, feature_map=feature_map, reflection=reflection, backend=backend)
    if kind == "norm":
        attend = partial(norm_attention, feature_map="identity")
    else:
        attend = partial(diag_attention, block_size=block_size, kind=kind, dropout_p=dropout_p)
    return attend(q, k, v, causal=causal, mask=mask, return_square_sums=return_square_sums, backend=backend)
