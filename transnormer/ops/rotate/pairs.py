"""Rotation of neighbouring pairs of features, and Householder reflection, as plain expressions."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate_pairs(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate the neighbouring pairs of x [..., T, H, D] by angles [..., T, D/2], the same for all heads."""
    return rotate_by(x, angles.cos().unsqueeze(-2), angles.sin().unsqueeze(-2)).to(x.dtype)


def rotate_by(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [..., D] with its pairs as points in the plane, rotated counterclockwise; cos and sin are [..., D/2]."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


def reflect(x: Tensor, reflection: Tensor) -> Tensor:
    """The Householder reflection x - 2(x·n)n along the unit vector n."""
    # A sum and not a matrix product, so that a compiler fuses it with the feature map and the rotation.
    return x - 2 * (x * reflection).sum(dim=-1, keepdim=True) * reflection
