"""Packed sequences: many in one row [1, T, ...], one behind the other; `cu_seqlens` [N + 1] says where each begins.

It starts at 0, ends at T and increases: sequence n has the tokens cu_seqlens[n] to cu_seqlens[n + 1] - 1. The name and
the one row are those of flash-attention and flash-linear-attention.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from transnormer.errors import ConfigError

_WHAT_IT_IS = "cu_seqlens is [0, length of the first, of the first two, ..., T]"


def checked_cu_seqlens(op: str, cu_seqlens: Tensor, x: Tensor, mask: Tensor | None, length: int) -> Tensor:
    """`cu_seqlens` where x [1, ..., ...] is, of a row of `length` tokens, or an error of `op`.

    What it says is read from a tensor on the CPU. To read it from a GPU would wait for all work before it: there, and
    in a compiled function, a wrong one stops the device instead.
    """
    if not isinstance(cu_seqlens, Tensor) or cu_seqlens.dtype not in (torch.int32, torch.int64):
        got = cu_seqlens.dtype if isinstance(cu_seqlens, Tensor) else type(cu_seqlens).__name__
        raise ConfigError(f"{op}: cu_seqlens must be a tensor of int32 or int64, got {got}", _WHAT_IT_IS)
    if cu_seqlens.dim() != 1 or len(cu_seqlens) < 2:
        raise ConfigError(f"{op}: cu_seqlens must be [N + 1] with N ≥ 1, got {list(cu_seqlens.shape)}", _WHAT_IT_IS)
    if x.shape[0] != 1:
        raise ConfigError(
            f"{op}: with cu_seqlens all sequences are one row, but B is {x.shape[0]}",
            "x.flatten(0, 1)[None] lays rows one behind the other",
        )
    if mask is not None:
        raise ConfigError(f"{op}: cu_seqlens and mask exclude each other", "leave padding out of a packed row")
    starts, ends, increases = cu_seqlens[0] == 0, cu_seqlens[-1] == length, (cu_seqlens.diff() > 0).all()
    if cu_seqlens.device.type == "cpu" and not torch.compiler.is_compiling():
        for holds, wanted in ((starts, "start at 0"), (ends, f"end at T = {length}"), (increases, "increase")):
            if not holds:
                raise ConfigError(f"{op}: cu_seqlens must {wanted}, got {_shown(cu_seqlens)}", _WHAT_IT_IS)
    else:
        torch._assert_async(starts & ends & increases, f"{op}: cu_seqlens must start at 0, end at T and increase")
    return cu_seqlens.to(x.device, torch.int64)


def _shown(cu_seqlens: Tensor) -> str:
    values = cu_seqlens.tolist()
    return str(values) if len(values) <= 8 else f"[{', '.join(map(str, values[:4]))}, ..., {values[-1]}]"


def sequences(cu_seqlens: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Queries, keys and values [1, T, H, D] of each packed sequence: [1, its length, H, D]."""
    lengths = cu_seqlens.diff().tolist()
    return zip(*(x.split(lengths, dim=1) for x in (q, k, v)), strict=True)


def sequence_of_tokens(cu_seqlens: Tensor, length: int) -> Tensor:
    """The number of each token's sequence: [T]."""
    return torch.searchsorted(cu_seqlens, torch.arange(length, device=cu_seqlens.device), right=True) - 1


def blocks_of(cu_seqlens: Tensor, length: int, size: int) -> Tensor:
    """Blocks of `size` tokens, begun anew with each sequence: [M, 3], its sequence, first token, and that one's end.

    M bounds their number by what is known without looking at the lengths; blocks too many begin behind an end.
    """
    counts = (cu_seqlens.diff() + size - 1) // size
    ends = counts.cumsum(dim=0)
    index = torch.arange(length // size + len(counts), device=cu_seqlens.device)
    sequence = torch.searchsorted(ends, index, right=True).clamp(max=len(counts) - 1)
    first = cu_seqlens[sequence] + (index - (ends - counts)[sequence]) * size
    return torch.stack([sequence, first, cu_seqlens[sequence + 1]], dim=1)
