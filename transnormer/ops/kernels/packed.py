"""Packed sequences inside kernels: where a program's rows begin, and how many there are.

A packed tensor has one row of the batch, so its batch stride is free: kernels are given the stride of a token in its
place, and the first token of a sequence where they would have a row of the batch.

Sequences are cut into parts of `size` tokens, the last of each perhaps shorter, and nobody knows how many these are
without waiting for the device. So parts have slots, T // size + N of them: sequence n, with first token b, has those
from b // size + n on. It fills ⌈its length / size⌉ and leaves one empty at most. Kernels find their sequence from their
slot by bisection, which spares tables and the launches that would fill them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def first_slot(CU_SEQLENS, sequence, size):
    return tl.load(CU_SEQLENS + sequence).to(tl.int32) // size + sequence


@triton.jit
def slot_rows(CU_SEQLENS, N, slot, size):
    """The sequence of a slot, its first token and its length, and which of its parts has the slot."""
    sequence, end = 0, N
    while end - sequence > 1:
        middle = (sequence + end) // 2
        behind = first_slot(CU_SEQLENS, middle, size) > slot
        end = tl.where(behind, middle, end)
        sequence = tl.where(behind, sequence, middle)
    first = tl.load(CU_SEQLENS + sequence).to(tl.int64)
    length = (tl.load(CU_SEQLENS + sequence + 1) - first).to(tl.int32)
    return sequence, first, length, slot - first_slot(CU_SEQLENS, sequence, size)


@triton.jit
def program_rows(CU_SEQLENS, N, T, size, PACKED: tl.constexpr):
    """Of a program with one part of a row: the row, what the batch stride is multiplied with, its length, the part."""
    if PACKED:
        return slot_rows(CU_SEQLENS, N, tl.program_id(0), size)
    else:
        batch = tl.program_id(1).to(tl.int64)
        return batch, batch, T, tl.program_id(0)


@triton.jit
def segment_rows(CU_SEQLENS, N, T, chunks, first_segment, C: tl.constexpr, PACKED: tl.constexpr):
    """Of a program that scans a segment of so many chunks: which row of states it has, and which border begins it.

    States at borders are [B, H, P + 1, D, E], of packed sequences [1, H, slots + N, D, E], each with a border more than
    segments. Then what the batch stride is multiplied with, the length, and the segment's chunks, from and to: of an
    empty slot none.
    """
    row = tl.program_id(1).to(tl.int64)
    if PACKED:
        sequence, origin, length, segment = slot_rows(CU_SEQLENS, N, tl.program_id(0), chunks * C)
        border = tl.program_id(0) + sequence
    else:
        origin, length, segment = row, T, first_segment + tl.program_id(0)
        border = segment
    first = segment * chunks
    return row, border, origin, length, first, tl.minimum(first + chunks, tl.cdiv(length, C))
