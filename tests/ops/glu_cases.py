"""Inputs of gated linear units."""

from __future__ import annotations

import torch


def problem(shape: tuple[int, ...], width: int, out: int, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    """x, weight_in, bias_in, weight_out; gate and up have a standard deviation of about 1.4."""
    generator = torch.Generator().manual_seed(width)
    size = shape[-1]
    scales = {shape: 1.0, (2 * width, size): size**-0.5, (2 * width,): 1.0, (out, width): width**-0.5}
    return [(torch.randn(s, generator=generator) * scale).to(device, dtype) for s, scale in scales.items()]
