"""Sequences packed in one row [1, T, ...], and where they lie in it. `transnormer.ops.packed` says what cu_seqlens is.

With processes that share the row (`Context`), each has a piece of it: whole sequences, perhaps behind the rest of one
that began in an earlier piece, and before the beginning of one that ends in a later piece.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from transnormer.mixers.components.context import Context, Sources
from transnormer.ops.packed import PackedBounds, checked_bounds, sequence_of_tokens


@dataclass(frozen=True)
class PackedRow(PackedBounds):
    """The sequences in a row, or in this process's piece of one, counted from the first token here."""

    positions: Tensor  # [T], of each token in its own sequence

    @cached_property
    def needed_positions(self) -> int:
        """How many the sequences need. Unless `longest` is known it waits for a GPU, as do `padded` and `flat`."""
        return int(self.positions.max()) + 1 if self.longest is None else self.longest

    @cached_property
    def _slots(self) -> Tensor:
        """Where each token stands in right-padded rows [N · needed_positions]."""
        return sequence_of_tokens(self.cu_seqlens, self.length) * self.needed_positions + self.positions

    def padded(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [1, T, ...] as right-padded rows [N, needed_positions, ...], and their mask."""
        count = len(self.cu_seqlens) - 1
        rows = x.new_zeros(count * self.needed_positions, *x.shape[2:]).index_copy(0, self._slots, x[0])
        mask = torch.arange(self.needed_positions, device=x.device) < self.cu_seqlens.diff()[:, None]
        return rows.unflatten(0, (count, self.needed_positions)), mask

    def flat(self, rows: Tensor) -> Tensor:
        """Undo `padded`."""
        return rows.flatten(0, 1)[self._slots][None]


@dataclass(frozen=True)
class PackedPiece(PackedRow):
    """This process's piece of a row, and what crosses the borders of all pieces."""

    carried: tuple[int, ...]  # for each piece: how many tokens its first sequence has in earlier ones
    before: Sources  # for each piece: the earlier ones that its first sequence has tokens in
    behind: Sources  # for each piece: the later ones that its last sequence has tokens in
    first_end: int  # where the first sequence ends here
    last_start: int  # where the last one begins here


def packed_row(
    op: str,
    cu_seqlens: Tensor | PackedBounds,
    x: Tensor,
    mask: Tensor | None,
    context: Context | None,
    longest: int | None = None,
) -> PackedRow:
    """What `cu_seqlens` says of the row x [1, T, ...], which has no padding; for `op`, which errors name.

    `longest`, if known, is the length of the longest sequence. With a `context`, x is this process's piece, and
    `cu_seqlens`, the same in all processes, is that of the whole row.
    """
    length = x.shape[1]
    whole = length if context is None else length * context.size
    bounds = checked_bounds(op, cu_seqlens, x, mask, length=whole, longest=longest)
    begins = bounds.cu_seqlens
    if context is None:
        positions = torch.arange(length, device=x.device) - begins[sequence_of_tokens(begins, length)]
        return PackedRow(begins, length, positions, longest=bounds.longest)
    return _piece(begins.tolist(), length, context, x.device)


def _piece(bounds: list[int], length: int, context: Context, device: torch.device) -> PackedPiece:
    """The piece of `length` tokens that `context` has of a row whose sequences begin and end at `bounds`."""
    begins = [piece * length for piece in range(context.size)]
    # Of the sequence with each piece's first token, and of that with its last one.
    starts = [bounds[bisect_right(bounds, begin) - 1] for begin in begins]
    ends = [bounds[bisect_right(bounds, begin + length - 1)] for begin in begins]
    begin = begins[context.rank]
    inside = [bound - begin for bound in bounds if begin < bound < begin + length]
    local = torch.tensor([0, *inside, length], device=device)
    steps = torch.arange(length, device=device)
    first_end = inside[0] if inside else length
    carried = begin - starts[context.rank]
    return PackedPiece(
        cu_seqlens=local,
        length=length,
        positions=steps - local[sequence_of_tokens(local, length)] + carried * (steps < first_end),
        carried=tuple(begin - start for begin, start in zip(begins, starts, strict=True)),
        before=tuple(tuple(range(start // length, piece)) for piece, start in enumerate(starts)),
        behind=tuple(tuple(range(piece + 1, (end - 1) // length + 1)) for piece, end in enumerate(ends)),
        first_end=first_end,
        last_start=inside[-1] if inside else 0,
    )
