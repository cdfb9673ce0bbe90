"""Packed sequences: many in one row [1, T, ...], one behind the other; `cu_seqlens` [N + 1] says where each begins.

It starts at 0, ends at T and increases: sequence n has the tokens cu_seqlens[n] to cu_seqlens[n + 1] - 1. The name and
the one row are those of flash-attention and flash-linear-attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from transnormer.errors import ConfigError

_WHAT_IT_IS = "cu_seqlens is [0, length of the first, of the first two, ..., T]"


@dataclass(frozen=True)
class PackedBounds:
    """Where packed sequences begin and end in their one row [B, T, ...], checked; `packed_bounds` makes them.

    `cu_seqlens` [N + 1] says it of a row of `length` tokens, and B = 1. They are checked once for all calls.
    `longest`, where it is known, is the length of the longest sequence.

    >>> import torch
    >>> bounds = tn.ops.packed_bounds(torch.tensor([0, 30, 100]), torch.randn(1, 100, 4, 16))
    >>> bounds.length, bounds.longest, bounds.cu_seqlens
    (100, 70, tensor([  0,  30, 100]))
    """

    cu_seqlens: Tensor
    length: int
    longest: int | None = field(default=None, kw_only=True)
    _cuts: dict[tuple[int, ...], Tensor] = field(default_factory=dict, repr=False, compare=False, kw_only=True)

    def cut(self, *sizes: int) -> Tensor:
        """Where sequences begin, then for each size how many parts of it there are before them: int32 [.., N + 1].

        It is what kernels find their sequence by, and made once.
        """
        if sizes not in self._cuts:
            parts = [(self.cu_seqlens.diff() + size - 1) // size for size in sizes]
            counted = [F.pad(part.cumsum(dim=0), (1, 0)) for part in parts]
            self._cuts[sizes] = torch.stack([self.cu_seqlens, *counted]).int()
        return self._cuts[sizes]


def packed_bounds(cu_seqlens: Tensor, x: Tensor, longest: int | None = None) -> PackedBounds:
    """Where packed sequences begin and end in their one row x [B, T, ...], checked once for many calls.

    `cu_seqlens` [N + 1] says it, and B = 1; its check takes longer than many an op.
    `longest`, which no sequence may exceed, spares a causal NormAttention of short ones a pass. It is read from a
    `cu_seqlens` on the CPU, but not from one on a GPU, which would wait for all work before it.

    >>> import torch
    >>> q, k, v = (torch.randn(1, 100, 4, 16) for _ in range(3))
    >>> bounds = tn.ops.packed_bounds(torch.tensor([0, 30, 100]), q)
    >>> tn.ops.diag_attention(q, k, v, causal=True, cu_seqlens=bounds).shape
    torch.Size([1, 100, 4, 16])
    """
    if not isinstance(x, Tensor):
        raise ConfigError(f"packed_bounds: x must be a tensor, got {type(x).__name__}", "torch.as_tensor(x)")
    return checked_bounds("packed_bounds", cu_seqlens, x, None, longest=longest)


def checked_bounds(
    op: str,
    cu_seqlens: Tensor | PackedBounds,
    x: Tensor,
    mask: Tensor | None,
    *,
    length: int | None = None,
    longest: int | None = None,
) -> PackedBounds:
    """The bounds where x [1, ..., ...] is of a row of `length` tokens, by default T, or an error of `op`.

    What they say is read from a tensor on the CPU. To read it from a GPU would wait for all work before it: there, and
    in a compiled function, wrong ones stop the device instead.
    """
    length = x.shape[1] if length is None else length
    if x.shape[0] != 1:
        raise ConfigError(
            f"{op}: with cu_seqlens all sequences are one row, but B is {x.shape[0]}",
            "x.flatten(0, 1)[None] lays rows one behind the other",
        )
    if mask is not None:
        raise ConfigError(f"{op}: cu_seqlens and mask exclude each other", "leave padding out of a packed row")
    if isinstance(cu_seqlens, PackedBounds):
        if cu_seqlens.length != length:
            raise ConfigError(f"{op}: these bounds are of a row of {cu_seqlens.length} tokens, and T is {length}")
        return cu_seqlens
    if not isinstance(cu_seqlens, Tensor) or cu_seqlens.dtype not in (torch.int32, torch.int64):
        got = cu_seqlens.dtype if isinstance(cu_seqlens, Tensor) else type(cu_seqlens).__name__
        raise ConfigError(f"{op}: cu_seqlens must be a tensor of int32 or int64, got {got}", _WHAT_IT_IS)
    if cu_seqlens.dim() != 1 or len(cu_seqlens) < 2:
        raise ConfigError(f"{op}: cu_seqlens must be [N + 1] with N ≥ 1, got {list(cu_seqlens.shape)}", _WHAT_IT_IS)
    if "meta" in (cu_seqlens.device.type, x.device.type):
        which = "it" if cu_seqlens.device.type == "meta" else "the row"
        raise ConfigError(
            f"{op}: where cu_seqlens cuts must be known, and {which} is on the meta device, which holds no numbers",
            "give both on a device with memory, such as 'cpu'",
        )
    lengths = cu_seqlens.diff()
    starts, ends, increases = cu_seqlens[0] == 0, cu_seqlens[-1] == length, (lengths > 0).all()
    if cu_seqlens.device.type == "cpu" and not torch.compiler.is_compiling():
        for holds, wanted in ((starts, "start at 0"), (ends, f"end at T = {length}"), (increases, "increase")):
            if not holds:
                raise ConfigError(f"{op}: cu_seqlens must {wanted}, got {_shown(cu_seqlens)}", _WHAT_IT_IS)
        found = int(lengths.max())
        if longest is not None and found > longest:
            raise ConfigError(f"{op}: a sequence of {found} tokens, and the longest is said to have {longest}")
        longest = found
    else:
        holds = starts & ends & increases
        if longest is not None:
            holds &= (lengths <= longest).all()
        torch._assert_async(holds, f"{op}: cu_seqlens must start at 0, end at T and increase, by the longest at most")
    return PackedBounds(cu_seqlens.to(x.device, torch.int64), length, longest=longest)


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


def sequences_in(bounds: Tensor | None) -> int:
    """How many sequences a row of the batch has, by what `PackedBounds.cut` gave."""
    return 1 if bounds is None else bounds.shape[1] - 1


def most_parts(bounds: Tensor, length: int, size: int) -> int:
    """How many parts of `size` tokens the sequences of a row can have in all."""
    return length // size + sequences_in(bounds)
