"""Packed sequences inside kernels: where a program's rows begin, and how many there are.

A packed tensor has one row of the batch, so its batch stride is free: kernels are given the stride of a token in its
place, and the first token of a sequence where they would have a row of the batch. States are by sequence.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sequence_rows(CU_SEQLENS, batch, T, PACKED: tl.constexpr):
    """What the batch stride is multiplied with, and the length: of a row of the batch, or of a packed sequence."""
    if PACKED:
        first = tl.load(CU_SEQLENS + batch)
        return first, (tl.load(CU_SEQLENS + batch + 1) - first).to(tl.int32)
    else:
        return batch, T


@triton.jit
def block_rows(BLOCKS, T, PACKED: tl.constexpr):
    """This program's sequence, what the batch stride is multiplied with, its chunk, and the tokens from there on."""
    if PACKED:
        block = BLOCKS + tl.program_id(0).to(tl.int64) * 3
        first = tl.load(block + 1)
        return tl.load(block), first, tl.program_id(0) * 0, (tl.load(block + 2) - first).to(tl.int32)
    else:
        batch = tl.program_id(1).to(tl.int64)
        return batch, batch, tl.program_id(0), T
