"""Where a token stands: sinusoidal tables for the input, rotations (RoPE, LRPE) for queries and keys.

LRPE (Qin et al., "Linearized Relative Positional Encoding") in the form that the authors' TransNormer uses: a fixed
Householder reflection shared by all heads, then a rotation whose angles are learned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from transnormer.errors import ConfigError, did_you_mean
from transnormer.mixers.components.initialisation import is_loaded
from transnormer.ops import rotate
from transnormer.ops.feature_maps import feature_map_named
from transnormer.ops.shapes import accumulation_dtype

ROTATIONS = ("none", "rope", "lrpe")
_BASE = 10_000.0


def sinusoidal_embedding(positions: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """The sine half and the cosine half of the absolute position (Vaswani et al. 2017): [..., size]."""
    half, precise = size // 2, accumulation_dtype(dtype)
    inverse_frequencies = _BASE ** (-torch.arange(half, device=positions.device, dtype=precise) / max(half - 1, 1))
    angles = positions[..., None].to(precise) * inverse_frequencies
    table = torch.cat([angles.sin(), angles.cos()], dim=-1)
    return nn.functional.pad(table, (0, size - 2 * half)).to(dtype)


def rope_inverse_frequencies(
    head_dim: int, device: torch.device | None = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """RoPE's angle per position of each pair of features (Su et al. 2021): [head_dim/2]."""
    return _BASE ** (-torch.arange(0, head_dim, 2, dtype=dtype, device=device) / head_dim)


class Rotation(nn.Module):
    """The rotation of queries and keys by their position: `none`, `rope` (fixed angles) or `lrpe` (learned).

    Angles and reflection stay float32 in a model of half precision: positions multiply them, and bfloat16's 8 bits
    would be off by radians after some hundred tokens.
    """

    reflection: Tensor

    def __init__(self, kind: str, head_dim: int) -> None:
        super().__init__()
        if kind not in ROTATIONS:
            raise ConfigError(f"unknown position '{kind}'", did_you_mean(kind, ROTATIONS))
        if kind != "none" and head_dim % 2:
            raise ConfigError(f"position '{kind}' needs an even head size, got {head_dim}", "use position: none")
        self.kind = kind
        self.head_dim = head_dim
        if kind == "lrpe":
            dtype = accumulation_dtype(torch.get_default_dtype())
            self.theta = nn.Parameter(torch.empty(head_dim // 2, dtype=dtype))
            self.register_buffer("reflection", torch.empty(head_dim, dtype=dtype))
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """LRPE starts at RoPE's angles, behind a random reflection that is never trained."""
        if self.kind != "lrpe":
            return
        with torch.no_grad():
            if not is_loaded(self.theta):
                self.theta.copy_(rope_inverse_frequencies(self.head_dim, dtype=self.theta.dtype))
            if not is_loaded(self.reflection):
                self.reflection.normal_()
                self.reflection /= self.reflection.norm()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """What `to`, `half` and `bfloat16` do with each tensor: here they move it, and leave its precision alone."""

        def precise(x: Tensor) -> Tensor:
            applied = fn(x)
            dtype = accumulation_dtype(applied.dtype)
            return applied if applied.dtype == dtype else x.to(applied.device, dtype)

        return super()._apply(precise, recurse)

    def forward(self, x: Tensor) -> dict[str, Any]:
        """The rotation of x as ops take it: inverse frequencies [D/2], None for `none`, and LRPE's reflection [D].

        Only a call reads the parameters: whoever keeps them elsewhere (accelerate, on a disk) brings them for it.
        """
        if self.kind == "lrpe":
            return {"inverse_frequencies": self.theta, "reflection": self.reflection}
        # Made where it is used: a copy from the host would keep a decode step out of a CUDA graph.
        frequencies = None
        if self.kind == "rope":
            frequencies = rope_inverse_frequencies(self.head_dim, x.device, accumulation_dtype(x.dtype))
        return {"inverse_frequencies": frequencies, "reflection": None}

    def rotate(self, q: Tensor, k: Tensor, positions: Tensor, feature_map: str = "identity") -> tuple[Tensor, Tensor]:
        """Rotate φ(q) and φ(k) [B, T, H, D] standing at `positions` [T] or [B, T]."""
        if self.kind == "none":
            phi = feature_map_named(feature_map)
            return phi(q), phi(k)
        return rotate(q, k, positions, feature_map=feature_map, **self(q))


def token_positions(x: Tensor, length: Tensor | None) -> Tensor:
    """Positions of the tokens of x [B, T, ...]: [T] from zero, or [B, T] after `length` [B] tokens."""
    steps = torch.arange(x.shape[1], device=x.device)
    return steps if length is None else length[:, None] + steps
