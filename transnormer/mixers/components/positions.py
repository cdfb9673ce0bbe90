"""Where a token stands: sinusoidal tables for the input, rotations (RoPE, LRPE) for queries and keys.

LRPE (Qin et al., "Linearized Relative Positional Encoding") in the form that the authors' TransNormer uses: a fixed
Householder reflection shared by all heads, then a rotation whose angles are learned.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from transnormer.errors import ConfigError, did_you_mean
from transnormer.mixers.components.initialisation import is_loaded
from transnormer.ops import rotate
from transnormer.ops.feature_maps import feature_map_named

ROTATIONS = ("none", "rope", "lrpe")
_BASE = 10_000.0


def sinusoidal_embedding(positions: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """The sine half and the cosine half of the absolute position (Vaswani et al. 2017): [..., size]."""
    half = size // 2
    inverse_frequencies = _BASE ** (
        -torch.arange(half, device=positions.device, dtype=torch.float32) / max(half - 1, 1)
    )
    angles = positions[..., None].float() * inverse_frequencies
    table = torch.cat([angles.sin(), angles.cos()], dim=-1)
    return nn.functional.pad(table, (0, size - 2 * half)).to(dtype)


def rope_inverse_frequencies(head_dim: int, device: torch.device | None = None) -> Tensor:
    """RoPE's angle per position of each pair of features (Su et al. 2021): [head_dim/2]."""
    return _BASE ** (-torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim)


class Rotation(nn.Module):
    """The rotation of queries and keys by their position: `none`, `rope` (fixed angles) or `lrpe` (learned)."""

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
            self.theta = nn.Parameter(torch.empty(head_dim // 2))
            self.register_buffer("reflection", torch.empty(head_dim))
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """LRPE starts at RoPE's angles, behind a random reflection that is never trained."""
        if self.kind != "lrpe":
            return
        with torch.no_grad():
            if not is_loaded(self.theta):
                self.theta.copy_(rope_inverse_frequencies(self.head_dim))
            if not is_loaded(self.reflection):
                self.reflection.normal_()
                self.reflection /= self.reflection.norm()

    def forward(self, device: torch.device) -> dict[str, Any]:
        """The rotation as ops take it: the inverse frequencies [D/2], None for `none`, and LRPE's reflection [D].

        Only a call reads the parameters: whoever keeps them elsewhere (accelerate, on a disk) brings them for it.
        """
        if self.kind == "lrpe":
            return {"inverse_frequencies": self.theta, "reflection": self.reflection}
        # Made where it is used: a copy from the host would keep a decode step out of a CUDA graph.
        frequencies = rope_inverse_frequencies(self.head_dim, device) if self.kind == "rope" else None
        return {"inverse_frequencies": frequencies, "reflection": None}

    def rotate(self, q: Tensor, k: Tensor, positions: Tensor, feature_map: str = "identity") -> tuple[Tensor, Tensor]:
        """Rotate φ(q) and φ(k) [B, T, H, D] standing at `positions` [T] or [B, T]."""
        if self.kind == "none":
            phi = feature_map_named(feature_map)
            return phi(q), phi(k)
        return rotate(q, k, positions, feature_map=feature_map, **self(q.device))


def token_positions(x: Tensor, length: Tensor | None) -> Tensor:
    """Positions of the tokens of x [B, T, ...]: [T] from zero, or [B, T] after `length` [B] tokens."""
    steps = torch.arange(x.shape[1], device=x.device)
    return steps if length is None else length[:, None] + steps
