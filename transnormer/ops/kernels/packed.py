"""Packed sequences inside kernels: where a program's rows begin, and how many there are.

A packed tensor has one row of the batch, so its batch stride is free: kernels are given the stride of a token in its
place, and the first token of a sequence where they would have a row of the batch.

Sequences are cut into parts, each has a slot, and BOUNDS are rows of N + 1 numbers: where the sequences begin, and how
many slots there are before them (`PackedBounds.cut`). How many there are in all nobody knows without waiting for the
device, so programs are as many as there could be. One finds its sequence by bisection. All heads of a slot come before
the next slot, so that programs without work are the last of all, and share no multiprocessor with those that have some.

PACKED is CUT, or UNCUT where every sequence is known to be one part: its slot has its number. Otherwise it is false.
"""

from __future__ import annotations

import triton
import triton.language as tl

CUT, UNCUT = tl.constexpr(1), tl.constexpr(2)


@triton.jit
def slot_rows(BOUNDS, slot, N, cut: tl.constexpr):
    """The sequence of a slot, its first token, its length, and which of its parts has the slot.

    Without a part it is one behind the end of the last sequence. `cut` is the row of BOUNDS that counts the slots.
    """
    slots = BOUNDS + cut * (N + 1)
    sequence, end = slot * 0, N
    while end - sequence > 1:
        middle = (sequence + end) // 2
        behind = tl.load(slots + middle) > slot
        end = tl.where(behind, middle, end)
        sequence = tl.where(behind, sequence, middle)
    first = tl.load(BOUNDS + sequence)
    length = tl.load(BOUNDS + sequence + 1) - first
    return sequence.to(tl.int64), first.to(tl.int64), length, slot - tl.load(slots + sequence)


@triton.jit
def program_rows(BOUNDS, N, T, heads, cut: tl.constexpr, PACKED: tl.constexpr):
    """Of a program with one part of a row: the row, what the batch stride is multiplied with, length, part, head."""
    if PACKED:
        sequence, first, length, part = slot_rows(BOUNDS, tl.program_id(0) // heads, N, cut)
        return sequence, first, length, part, (tl.program_id(0) % heads).to(tl.int64)
    else:
        batch = tl.program_id(1).to(tl.int64)
        return batch, batch, T, tl.program_id(0), tl.program_id(2).to(tl.int64)


@triton.jit
def segment_rows(BOUNDS, N, T, heads, chunks, first_segment, C: tl.constexpr, PACKED: tl.constexpr):
    """Of a program that scans a segment of so many chunks: which row of states it has, and which border begins it.

    States at borders are [B, H, P + 1, D, E], of packed sequences [1, H, slots + N, D, E], each with a border more than
    segments. Then what the batch stride is multiplied with, the length, the head, and the chunks, from and to: without
    any the slot is empty.
    """
    if PACKED:
        slot, head = tl.program_id(0) // heads, (tl.program_id(0) % heads).to(tl.int64)
        if PACKED == CUT:
            sequence, origin, length, segment = slot_rows(BOUNDS, slot, N, 1)
        else:
            sequence, origin, segment = slot.to(tl.int64), tl.load(BOUNDS + slot), slot * 0
            origin, length = origin.to(tl.int64), tl.load(BOUNDS + slot + 1) - origin
        row, border = sequence * 0, slot + sequence
    else:
        row, segment, head = tl.program_id(1).to(tl.int64), first_segment + tl.program_id(0), tl.program_id(2)
        origin, length, border, head = row, T, segment, head.to(tl.int64)
    first = segment * chunks
    return row, border, origin, length, head, first, tl.minimum(first + chunks, tl.cdiv(length, C))
