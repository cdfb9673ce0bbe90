"""How a call of NormAttention is cut into chunks, segments and programs, and the states between the segments."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from transnormer.ops.kernels.launch import power_of_two
from transnormer.ops.kernels.packed import CUT, UNCUT
from transnormer.ops.kernels.rotation import NO_ROTATION, Rotation
from transnormer.ops.kernels.shared_memory import launch, shared_memory_bytes
from transnormer.ops.norm_attention.kernel_full import total_of_segments
from transnormer.ops.norm_attention.kernel_segments import scan_segments, segment_sums
from transnormer.ops.packed import most_parts, sequences_in

_WIDEST_PIECE = 64
_LONGEST_CHUNK = 128
# What the forward of wide heads takes with it, in bytes; an H100 has more, an A100 less.
_SHARED_BY_LONGEST = 200 * 1024
# Two programs on each of an H200's 132 multiprocessors: as many as it has registers for.
_AT_ONCE = 264
# Tokens over which the backward undoes a state back to the first one. Tensor cores round sums towards zero, so what is
# left of it grows with the square of their number. The gradient of the first eight queries is off by 0.6 % then, and by
# 2.3 % after 8,192 tokens, where values have a mean of one (an H200; rounding to bfloat16 makes 0.2 %).
_LONGEST_UNDONE = 4096
# Packed sequences of so many tokens stay whole where they are many: a state at a border is a sixteenth of their bytes.
_SHORTEST_UNCUT = 512


def wanted_segments(pairs: int, width: int, causal: bool, masked_backward: bool = False) -> int:
    """Into how many segments time is cut for so many pairs of batch and head (measured on an H200 at 8 to 512 of them).

    A causal scan over heads up to 64 is fastest with two programs on each multiprocessor, and uncut where three in four
    have one, because a cut costs another pass over k and v. Larger heads take twice as many. So do bidirectional sums,
    which are cut at no cost, and those of small head sizes, whose programs are small, are cut up to that many.

    `masked_backward`: the backward, which has no register to spare for masks, is slow with a multiprocessor to itself
    (205 us against 170, 32,768 tokens in 8 heads of 64): then heads up to 64 are cut wherever it would have.
    """
    if causal:
        enough, full = (96, 256) if width <= _WIDEST_PIECE else (256, 512)
        if masked_backward and width <= _WIDEST_PIECE:
            enough = full
    else:
        full = 512
        enough = full if width < _WIDEST_PIECE else full // 2
    return 1 if pairs >= enough else triton.cdiv(full, max(pairs, 1))


class Launch(NamedTuple):
    """A launch of a scan: its first segment, the tokens of a segment, and which boundary state would be segment 0's."""

    segment: int
    tokens: int
    offset: int


class Plan:
    """How one call is cut into chunks, segments and programs.

    How long packed sequences are nobody knows without waiting for the device: they are cut as if all had the same
    length, into segments that have slots (`ops.kernels.packed`), and a sequence much longer has more of them.
    """

    def __init__(
        self, q: Tensor, v: Tensor, mask: Tensor | None, causal: bool, phi: int, bounds: Tensor | None = None
    ) -> None:
        self.batch, self.length, self.heads, self.d = q.shape
        self.bounds, self.per_row = bounds, sequences_in(bounds)
        # What kernels are told: bounds that count no parts are of sequences that are one segment each.
        self.packed = 0 if bounds is None else UNCUT.value if causal and bounds.shape[0] == 1 else CUT.value
        self.sequences, self.causal = self.batch * self.per_row, causal
        self.e = v.shape[3]
        self.bd, self.be = power_of_two(self.d), power_of_two(self.e)
        self.wide = max(self.bd, self.be) > _WIDEST_PIECE
        if self.wide:  # Triton 3.6 compiles `causal_dk` of 32 columns beside 128 to wrong numbers on Hopper
            self.bd, self.be = max(self.bd, _WIDEST_PIECE), max(self.be, _WIDEST_PIECE)
        self.chunk = _chunk(self.length, 64)
        # Both directions share the boundaries of the segments: a segment is a whole number of either's chunks.
        longest = _LONGEST_CHUNK if causal and self.wide and shared_memory_bytes(q.device) >= _SHARED_BY_LONGEST else 64
        self.forward_chunk = _chunk(self.length, longest)
        pairs, width = self.sequences * self.heads, max(self.bd, self.be)
        segments = wanted_segments(pairs, width, causal)
        longest_segment = _LONGEST_UNDONE if causal and not self.wide else None
        # Without a cut segments run one after the other and hand the state on, a launch each and no first pass. Each is
        # as long as all before it: where the state is large, little is lost in undoing it.
        self.in_sequence = False
        if bounds is not None:
            shortest = _SHORTEST_UNCUT if segments == 1 else _LONGEST_CHUNK
            if self.packed == CUT.value:
                segments = wanted_segments(pairs, width, causal, masked_backward=True)
            mean = triton.cdiv(self.length, self.per_row)
            self.segment = _segment_of_packed(mean, segments, shortest, longest_segment)
            self.segments = (
                self.per_row if self.packed == UNCUT.value else most_parts(bounds, self.length, self.segment)
            )
        else:
            chunks = triton.cdiv(self.length, self.forward_chunk)
            segments = min(chunks, segments)
            self.segment = triton.cdiv(chunks, segments) * self.forward_chunk
            self.segment = min(self.segment, longest_segment or self.segment)
            self.in_sequence = segments == 1
            in_turn = _doublings(self.segment, self.length) + 1
            self.segments = in_turn if self.in_sequence else triton.cdiv(self.length, self.segment)
        self.borders = self.segments + self.per_row
        self.masked = mask is not None
        self.mask_stride = 0 if mask is None else mask.stride(0)
        self.sizes: dict[str, Any] = {"D": self.d, "E": self.e, "PHI": phi, "HAS_MASK": self.masked}
        self.sizes["PACKED"] = self.packed
        self.tiles = {**self.sizes, "C": self.chunk, "BD": self.bd, "BE": self.be}
        # Three stages load a chunk during the one before it, two wait for it: 110 and 134 us backward, 64 x 512 tokens.
        self.tiles |= {"num_warps": 8 if self.wide else 4, "num_stages": 3}
        self.last = (self.mask_stride, self.heads, self.borders)

    def scan(self, chunk: int, tokens: int | None = None) -> tuple[int, int, int]:
        """What a scan in such chunks is told: packed sequences, the length, and how many chunks are a segment."""
        return self.per_row, self.length, (tokens or self.segment) // chunk

    def unmasked(self, chunk: int) -> bool:
        """Whether tiles of so many rows hold real tokens only, so that nothing needs a mask."""
        return not (self.masked or self.packed) and self.length % chunk == 0 and (self.d, self.e) == (self.bd, self.be)

    def forward_tiles(self) -> dict[str, Any]:
        """How the causal forward is compiled."""
        tiles = {**self.tiles, "C": self.forward_chunk, "UNMASKED": self.unmasked(self.forward_chunk)}
        if self.wide:  # three stages of 128 rows would not fit
            return tiles | {"num_stages": 2}
        # With few registers a third program shares a multiprocessor; where none is left it would only slow the others.
        waiting = math.prod(self.grid()) > _AT_ONCE
        return tiles | ({"maxnreg": 168} if waiting else {})

    def pieces(self, columns: int) -> dict[str, int]:
        """How the columns of a gradient of large heads are shared out among programs."""
        piece = min(columns, _WIDEST_PIECE)
        return {"C": self.chunk, "PIECE": piece, "PIECES": columns // piece, "num_warps": 4, "num_stages": 2}

    def grid(self, pieces: int = 1) -> tuple[int, int, int]:
        """Programs of a scan: one for each segment, or slot for one, batch row and piece of a head."""
        if self.packed:
            return self.segments * self.heads * pieces, 1, 1
        return 1 if self.in_sequence else self.segments, self.batch, self.heads * pieces

    def launches(self) -> list[Launch]:
        """The launches of a scan, from first to last.

        After tokens 0 to n come those from n to 2n: segment 1 of segments of n tokens, and so on with all of them as n.
        """
        after = range(self.segments - 1 if self.in_sequence else 0)
        return [Launch(0, self.segment, 0), *(Launch(1, self.segment * 2**count, count) for count in after)]

    def chunks(self, together: int = 1) -> tuple[int, int, int]:
        """The grid where every chunk, in so many heads together, is a program by itself."""
        programs = self.heads // together
        if self.bounds is not None:
            return most_parts(self.bounds, self.length, self.chunk) * programs, 1, 1
        return triton.cdiv(self.length, self.chunk), self.batch, programs

    @property
    def cuts(self) -> tuple[int, ...]:
        """What packed sequences are cut into, as `PackedBounds.cut` is told."""
        return (self.segment,) if self.causal else (self.segment, self.chunk)

    def strides(self, *tensors: Tensor) -> list[int]:
        """Of batch, time and head, tensor after tensor; of packed ones the token's stands in for that of the batch."""
        return [stride for x in tensors for stride in (x.stride(1 if self.packed else 0), *x.stride()[1:3])]

    def states(self, like: Tensor, rows: int, count: int) -> Tensor:
        """Uninitialised float32 states [rows, H, count, D, E]."""
        return torch.empty((rows, self.heads, count, self.d, self.e), dtype=torch.float32, device=like.device)

    def empty_borders(self, like: Tensor) -> Tensor:
        """Uninitialised states at the borders of the segments: [B, H, P + 1, D, E], packed [1, H, P + N, D, E]."""
        return self.states(like, self.batch, self.borders)

    def empty_totals(self, like: Tensor) -> Tensor:
        """Uninitialised states of whole sequences: [B, H, 1, D, E], packed [N, H, 1, D, E]."""
        return self.states(like, self.sequences, 1)

    def sums(
        self,
        x: Tensor,
        y: Tensor,
        mask: Tensor | None,
        backward: bool,
        wanted: str,
        rotation: Rotation = NO_ROTATION,
    ) -> Tensor:
        """Σ φ(x)ᵀy over each of the `wanted` segments: [B, H, P, D, E]."""
        sums = self.states(x, self.batch, self.segments)
        launch(segment_sums, self.grid())(
            x, y, sums, mask, self.bounds, *rotation.arguments(bool(self.packed)), *self.scan(self.chunk),
            *self.strides(x, y), self.mask_stride, self.heads, self.segments, **self.tiles, **rotation.options(),
            UNMASKED=self.unmasked(self.chunk), REVERSED=not backward, WANTED=wanted,
        )  # fmt: skip
        return sums

    def _of_sums(self) -> tuple[Any, ...]:
        """What kernels over the sums of all segments are told, and the grid: of pairs of sequence and head."""
        size, block = self.d * self.e, 1024
        told = (self.bounds, self.per_row, self.heads, self.segments, size)
        return told, (self.sequences * self.heads, triton.cdiv(size, block)), block

    def total(
        self,
        x: Tensor,
        y: Tensor,
        mask: Tensor | None,
        start: Tensor | None,
        other: Tensor | None = None,
        rotation: Rotation = NO_ROTATION,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """start + Σ φ(x)ᵀy over the whole sequence [B, H, 1, D, E], rounded as x is, and `other` rounded likewise."""
        total = self.empty_totals(x)
        rounded = torch.empty_like(total, dtype=x.dtype)
        other_rounded = None if other is None else torch.empty_like(total, dtype=x.dtype)
        told, grid, block = self._of_sums()
        total_of_segments[grid](
            self.sums(x, y, mask, other is not None, "all", rotation), start, total, rounded, other, other_rounded,
            *told, start is not None, other is not None, self.packed, block,
        )  # fmt: skip
        return total, rounded, other_rounded

    def scanned(self, x: Tensor, y: Tensor, mask: Tensor | None, start: Tensor | None, backward: bool) -> Tensor:
        """The states at the borders of the segments, from `start` on, forward or backward.

        Those that the scan writes which reads them are left out, and a first one that is zero.
        """
        borders = self.empty_borders(x)
        if self.in_sequence or self.packed == UNCUT.value:
            if start is not None:
                (self.at_ends if backward else self.at_starts)(borders).copy_(start)
            return borders
        told, grid, block = self._of_sums()
        sums = self.sums(x, y, mask, backward, "but the first" if backward else "but the last")
        scan_segments[grid](sums, start, borders, *told, start is None, backward, self.packed, block)
        return borders

    def at_ends(self, states: Tensor) -> Tensor:
        """Of the states that a call returns those at the ends of sequences: [B, H, D, E], packed [N, H, D, E]."""
        return self._at(states, -1)

    def at_starts(self, states: Tensor) -> Tensor:
        """Likewise before their first tokens."""
        return self._at(states, 0)

    def _at(self, states: Tensor, border: int) -> Tensor:
        """The states at the first border (0) or the last (-1) of each sequence, which has one more than segments."""
        if self.bounds is None or not self.causal:
            return states[:, :, border]
        if self.packed == UNCUT.value:
            return states[0].unflatten(1, (self.per_row, 2))[:, :, border].transpose(0, 1)
        earlier = torch.arange(self.per_row, device=states.device)
        parts = self.bounds[1, :-1] if border == 0 else self.bounds[1, 1:]
        return states[0, :, parts + earlier].transpose(0, 1)


def _doublings(segment: int, length: int) -> int:
    """How often a segment must be doubled to hold the length; by comparison, as in `_chunk`."""
    count = 0
    while segment * 2**count < length:
        count += 1
    return count


def _segment_of_packed(length: int, segments: int, shortest: int, longest: int | None) -> int:
    """Tokens of a segment of packed sequences whose mean length is this, if so many of them are wanted.

    A power of two, again by comparison. Where sequences need no cut, it is one that most of them fit.
    """
    wanted, size = 2 * length if segments == 1 else triton.cdiv(length, segments), shortest
    while size < wanted and size != longest:
        size *= 2
    return size


def _chunk(length: int, longest: int) -> int:
    """The smallest power of two from 16 that holds the length, but not above `longest`.

    By comparison: a compiler then keeps one graph for a range of lengths, and not one for each.
    """
    return next((size for size in (16, 32, 64) if length <= size), longest)
