"""Absolute positions against the formula, number by number."""

from __future__ import annotations

import math

import pytest
import torch

from transnormer.mixers.components.positions import sinusoidal_embedding


@pytest.mark.parametrize("size", [2, 3, 8, 17])
def test_sinusoids_are_those_of_the_formula(size: int) -> None:
    """fairseq's: sines, then cosines, of position / 10000^(i / (half - 1)), the last of an odd size zero."""
    half = size // 2
    table = sinusoidal_embedding(torch.tensor([[0, 1, 7, 300]]), size, torch.float32)
    assert table.shape == (1, 4, size)
    for row, position in zip(table[0].tolist(), (0, 1, 7, 300), strict=True):
        angles = [position / 10_000 ** (i / max(half - 1, 1)) for i in range(half)]
        expected = [*map(math.sin, angles), *map(math.cos, angles), *([0.0] * (size % 2))]
        assert row == pytest.approx(expected, abs=2e-5)
