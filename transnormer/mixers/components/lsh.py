"""Angular locality-sensitive hashing, and chunks of one bucket each that never look at the future.

A random rotation R hashes x to argmax([xR, -xR]) (Andoni et al. 2015): near vectors tend to share the bucket.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from transnormer.ops.autocast import without_autocast
from transnormer.ops.shapes import accumulation_dtype


def default_num_buckets(length: int, chunk_size: int) -> list[int]:
    """Two buckets per chunk, as the paper recommends, as a power of two; many buckets are a product of two hashes."""
    exponent = max((2 * (length // chunk_size)).bit_length() - 1, 1)
    if 2**exponent <= 2 * max(math.isqrt(length // chunk_size), chunk_size):
        return [2**exponent]
    return [2 ** (exponent // 2), 2 ** (exponent - exponent // 2)]


def hash_buckets(x: Tensor, rotations: Tensor, factors: Sequence[int]) -> Tensor:
    """Buckets [B, H, R, T] of x [B, T, H, D] in R rounds, below the product of the factors.

    `rotations` [H, D, R, S] holds half the sum of the factors in S: the other half of each hash is its negative.
    """
    # Rounding to 8 bits would tie the largest entries, and a tie may break otherwise when a token comes alone.
    dtype = accumulation_dtype(x.dtype)
    with torch.no_grad(), without_autocast(x.device):
        rotated = torch.einsum("bthd,hdrs->bhrts", x.to(dtype), rotations.to(dtype))
        buckets, scale = torch.zeros_like(rotated[..., 0], dtype=torch.long), 1
        for part, factor in zip(rotated.split([f // 2 for f in factors], dim=-1), factors, strict=True):
            buckets += scale * torch.cat([part, -part], dim=-1).argmax(dim=-1)
            scale *= factor
    return buckets


@dataclass(frozen=True)
class BucketChunks:
    """Tokens laid out in chunks of one bucket each: of each bucket the first c tokens, the next c tokens, and so on.

    All of it is known when the token arrives: a token's chunk and slot count the earlier tokens of its bucket, and
    chunks are numbered in the order in which they open. What comes later fills only later slots and later chunks.
    """

    tokens: Tensor  # [B, H, R, C, c] position of the token in each slot; -1: empty
    previous: Tensor  # [B, H, R, C] the chunk before it in the same bucket; the last chunk, always empty: there is none
    index: Tensor  # [B, H, R, T] chunk * c + slot of each token


def chunks_by_bucket(buckets: Tensor, num_buckets: int, chunk_size: int) -> BucketChunks:
    """Lay the tokens of buckets [B, H, R, T] out by one sort; the number of chunks depends on shapes alone."""
    length = buckets.shape[-1]
    opened_by_first = min(num_buckets, length)
    num_chunks = opened_by_first + (length - opened_by_first) // chunk_size + 1

    order = buckets.argsort(dim=-1, stable=True)  # by bucket, then by position
    ordered = buckets.gather(-1, order)
    at = torch.arange(length, device=buckets.device).expand_as(ordered)
    begins = torch.ones_like(ordered, dtype=torch.bool)
    begins[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    rank = at - torch.where(begins, at, 0).cummax(dim=-1).values  # earlier tokens of the same bucket
    slot = rank % chunk_size

    opens = torch.zeros_like(order).scatter(-1, order, (slot == 0).long())
    number = opens.cumsum(dim=-1) - 1  # of the chunk that a token opens
    opener = at - slot
    chunk = number.gather(-1, order.gather(-1, opener))
    before = number.gather(-1, order.gather(-1, (opener - chunk_size).clamp(min=0)))
    before = torch.where(rank >= chunk_size, before, num_chunks - 1)

    shape = buckets.shape[:-1]
    index = chunk * chunk_size + slot
    tokens = torch.full((*shape, num_chunks * chunk_size), -1, device=buckets.device).scatter(-1, index, order)
    previous = torch.full((*shape, num_chunks), num_chunks - 1, device=buckets.device).scatter(-1, chunk, before)
    return BucketChunks(
        tokens=tokens.unflatten(-1, (num_chunks, chunk_size)),
        previous=previous,
        index=torch.zeros_like(order).scatter(-1, order, index),
    )
