"""Which random blocks a block of BigBird sees: ours, anywhere and never twice, and the one behind published numbers."""

from __future__ import annotations

import functools

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transnormer.mixers.components.counter_rng import draw_below

# Lengths that the method's authors gave a plan of their own, and the tokens that those draw from.
_TABULATED_LENGTHS, _TABULATED_TOKENS = (1024, 3072, 4096), 1024


def random_plan(num_blocks: Tensor, total: int, num_heads: int, num_random: int, seed: int) -> Tensor:
    """For each head and block, `num_random` distinct blocks [B, H, total, r] of a row of num_blocks [B] blocks.

    Neither of them is a global block or in the window. Each draw counts among the blocks that are still free and then
    steps over the others in ascending order, which costs r(r + 5) per block, whatever the length. The plan is defined
    for blocks that are not global, in rows of more than 5 + r blocks; elsewhere it is some block of the row.
    """
    own = torch.arange(total, device=num_blocks.device)[None, None, :]
    head = torch.arange(num_heads, device=num_blocks.device)[None, :, None]
    rows = num_blocks[:, None, None]
    own, head, rows = torch.broadcast_tensors(own, head, rows)
    nowhere = torch.full_like(own, 2**31)
    # Beside a global block one neighbour is that block, which must not be stepped over twice.
    left = torch.where(own > 1, own - 1, nowhere)
    right = torch.where(own + 1 < rows - 1, own + 1, nowhere)
    taken = torch.stack([torch.zeros_like(own), left, own, right, rows - 1], dim=-1)
    drawn = []
    for draw in range(num_random):
        free = (rows - (taken < nowhere[..., None]).sum(dim=-1)).clamp(min=1)
        block = draw_below(free, seed, head, own, torch.full_like(own, draw))
        for obstacle in taken.sort(dim=-1).values.unbind(dim=-1):
            block = block + (block >= obstacle)
        drawn.append(block)
        taken = torch.cat([taken, block[..., None]], dim=-1)
    if not drawn:
        return torch.empty(*own.shape, 0, dtype=torch.long, device=own.device)
    return torch.stack(drawn, dim=-1).minimum((rows - 1)[..., None])


@functools.lru_cache(maxsize=64)
def published_plan(
    total: int, block_size: int, num_heads: int, num_random: int, max_length: int, seed: int
) -> NDArray[np.int64]:
    """The plan [H, total, r] that reference implementations draw for a sequence of `total` blocks (see the mixer)."""
    numpy_random = np.random.RandomState(seed)
    plan = np.zeros((num_heads, total, num_random), dtype=np.int64)
    if total * block_size in _TABULATED_LENGTHS:
        most, end = max(max_length // block_size, total), _TABULATED_TOKENS // block_size - 1
        for head in range(num_heads):
            # Rows beyond this sequence are drawn too: they move the generator on for the next head.
            for row in range(1, most - 1):
                drawn = numpy_random.permutation(_tabulated_candidates(row, most, end))[:num_random]
                if row < total - 1:
                    plan[head, row] = drawn
        return plan
    near = 2 * num_random + 5
    for row in range(1, total - 1):
        barred = {row - 1, row, row + 1, 0, near - 1}
        barred |= {near - 2} if row == 1 else {1} if row == near - 2 else set()
        for head in range(num_heads):
            order = numpy_random.permutation(np.arange(near, dtype=np.int32))
            plan[head, row] = [block for block in order if block not in barred][:num_random]
    return plan


def _tabulated_candidates(row: int, most: int, end: int) -> NDArray[np.int32]:
    """The blocks that a row of the tabulated plans chooses from, duplicates of window and last block included."""
    inner = np.arange(1, most - 1, dtype=np.int32)
    if row <= 2:
        return inner[row + 1 : end]
    if row >= most - 3 or row - 2 > end:
        return inner[:end]
    return np.concatenate([inner[: row - 2], inner[row + 1 : end]])
