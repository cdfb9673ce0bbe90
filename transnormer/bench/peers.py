"""Other implementations of our ops: plain PyTorch, torch.compile, SDPA, FlexAttention, flash-linear-attention.

A peer is given what makes it fast: FlexAttention's block mask is built before the clock starts, the feature map and the
norm around flash-linear-attention's kernels are compiled. fla's `chunk_simple_gla` without a gate is the same code as
its `chunk_linear_attn`, so it is not run beside it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from transnormer.bench.attention_ops import BLOCK, Op, attention_op, full_softmax
from transnormer.bench.cases import DIAG_CASES, FULL_SOFTMAX, PACKED_CASES
from transnormer.errors import ConfigError
from transnormer.ops import rms_norm
from transnormer.ops.feature_maps import one_plus_elu

# The op of a case at a length, or None where the peer has no implementation of that case.
Builder = Callable[[str, int], Op | None]
_FLA = "flash-linear-attention"


def _plain(case: str, length: int) -> Op | None:
    return None if case == FULL_SOFTMAX or case in PACKED_CASES else attention_op(case, "torch")


def _compiled(case: str, length: int) -> Op | None:
    plain = _plain(case, length)
    return None if plain is None else torch.compile(plain, fullgraph=True, dynamic=False)


def _sdpa(case: str, length: int) -> Op | None:
    """Softmax attention by the kernel PyTorch chooses; blocks are put into the batch."""
    if case == FULL_SOFTMAX:
        return full_softmax
    kind, causal = DIAG_CASES.get(case, ("", False))
    if kind != "softmax" or length % BLOCK:
        return None

    def op(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.reshape(-1, BLOCK, *x.shape[2:]).transpose(1, 2) for x in (q, k, v))  # [B·N, H, w, D]
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return out.transpose(1, 2).reshape(-1, length, *out.shape[1::2])

    return op


def _sdpa_cudnn(case: str, length: int) -> Op | None:
    chosen = _sdpa(case, length)
    if chosen is None:
        return None
    op = chosen

    def by_cudnn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return op(q, k, v)

    return by_cudnn


def _flex(case: str, length: int, *, tile: int = 128, **compilation: Any) -> Op | None:
    """FlexAttention with a causal, a block-diagonal mask, or both; softmax is all it knows."""
    if case == FULL_SOFTMAX:
        blocks, causal = False, True
    elif case in DIAG_CASES and DIAG_CASES[case][0] == "softmax":
        blocks, causal = True, DIAG_CASES[case][1]
    else:
        return None

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        within = query // BLOCK == key // BLOCK
        if not causal:
            return within
        return within & (query >= key) if blocks else query >= key

    device = "cuda" if torch.cuda.is_available() else "cpu"
    mask = create_block_mask(visible, None, None, length, length, device=device, BLOCK_SIZE=tile)
    attend = torch.compile(flex_attention, fullgraph=True, dynamic=False, **compilation)

    def op(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return attend(q, k, v, block_mask=mask).transpose(1, 2)

    return op


def _flex_tuned(case: str, length: int) -> Op | None:
    """Tiles of one block instead of half-masked ones; they have no valid default on Hopper and must be searched for."""
    if case not in DIAG_CASES:
        return None
    return _flex(case, length, tile=BLOCK, mode="max-autotune-no-cudagraphs")


def _fla(name: str) -> Builder:
    def build(case: str, length: int) -> Op | None:
        if case != "norm causal":
            return None
        import fla.ops.linear_attn

        attend = getattr(fla.ops.linear_attn, name)
        features = torch.compile(_features, fullgraph=True, dynamic=False)
        norm = torch.compile(_joined_norm, fullgraph=True, dynamic=False)

        def op(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k = features(q, k)
            return norm(attend(q, k, v, scale=1.0, normalize=False)[0])

        return op

    return build


def _features(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return one_plus_elu(q), one_plus_elu(k)


def _joined_norm(out: Tensor) -> Tensor:
    return rms_norm(out.flatten(-2), backend="torch")


PEERS: dict[str, Builder] = {
    "torch": _plain,
    "compile": _compiled,
    "sdpa": _sdpa,
    "sdpa-cudnn": _sdpa_cudnn,
    "flex": _flex,
    "flex-tuned": _flex_tuned,
    "fla-chunk": _fla("chunk_linear_attn"),
    "fla-fused": _fla("fused_chunk_linear_attn"),
}
# Whose compilation is a search by time: nothing else may run beside it.
SEARCHING = ("flex-tuned",)


def why_not(peer: str) -> str | None:
    """Why a peer cannot be run here, or None."""
    if peer.startswith("fla-") and importlib.util.find_spec("fla") is None:
        return f"{_FLA} is not installed"
    return None


def peer_versions() -> dict[str, str]:
    """What each peer that can be run comes from; for the others, why they cannot."""
    return {
        name: why_not(name) or (f"{_FLA} {version(_FLA)}" if name.startswith("fla-") else f"torch {torch.__version__}")
        for name in PEERS
    }


def able_peers(wanted: list[str] | None) -> list[str]:
    """The peers that are wanted, each of which must be able to run here; None is all that are."""
    if wanted is None:
        return [name for name in PEERS if why_not(name) is None]
    for name in wanted:
        if (problem := why_not(name)) is not None:
            raise ConfigError(f"--peers {name}: {problem}", "pip install 'transnormer[peers]'")
    return wanted
