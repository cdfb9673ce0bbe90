"""A counter-based random generator: numbers are a pure function of a seed and coordinates, alike on every device.

A generator's numbers depend on the shape that is asked for, so a padded batch would see other choices than its rows
alone. A hash of (seed, coordinates) does not, and needs neither a table for the longest sequence nor a state.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BITS = 32
_LOW = 2**_BITS - 1
# Both constants keep every product below 2^63: no step relies on integer overflow.
_MULTIPLIER = 0x45D9F3B
_STRIDE = 0x1E3779B1


def _scramble(x: Tensor) -> Tensor:
    x = ((x >> 16) ^ x) * _MULTIPLIER & _LOW
    x = ((x >> 16) ^ x) * _MULTIPLIER & _LOW
    return (x >> 16) ^ x


def hashed(seed: int | Tensor, *coordinates: Tensor) -> Tensor:
    """32 random bits (int64) for each point of the broadcast integer coordinates (non-negative, below 2^31)."""
    # torch.full fills on the device; a tensor made of a number would be copied there, and waited for.
    bits = torch.full((), seed & _LOW, device=coordinates[0].device) if isinstance(seed, int) else seed & _LOW
    for coordinate in coordinates:
        bits = _scramble((_scramble(bits) + (coordinate + 1) * _STRIDE) & _LOW)
    return bits


def draw_below(count: Tensor | int, seed: int | Tensor, *coordinates: Tensor) -> Tensor:
    """An integer of [0, count) for each point of the coordinates, uniform up to count / 2^32."""
    return (hashed(seed, *coordinates) * count) >> _BITS


def fresh_seed(device: torch.device) -> Tensor:
    """A seed from the global generator, for methods that draw anew in each training step."""
    return torch.randint(2**31, (), device=device)
