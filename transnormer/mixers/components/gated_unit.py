"""The gated attention unit: one layer that is attention and feed-forward at once (Hua et al. 2022, section 3).

u, v = silu(xW), silu(xW') have twice the width of the model and z = silu(xW'') is small; queries and keys are affine
images of z. The layer gives W(u ⊙ o), o being the attention over v. One head; FLASH and FLASH-quad differ in o alone.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transnormer.errors import ConfigError
from transnormer.mixers.components.positions import Rotation, rope_inverse_frequencies
from transnormer.mixers.contract import Mixer
from transnormer.ops.rotate.pairs import rotate_pairs
from transnormer.ops.shapes import accumulation_dtype, zero_padding

_STD = 0.02


class DistanceBias(nn.Module):
    """A learned bias for each distance i - j: a table up to max_length, beyond it RoPE(a)ᵢ·RoPE(b)ⱼ.

    Both depend on the distance alone, so the bias of a pair of tokens does not change as the sequence grows.
    """

    def __init__(self, max_length: int, size: int) -> None:
        super().__init__()
        self.max_length = max_length
        self.table = nn.Parameter(torch.empty(2 * max_length - 1))
        self.far_query = nn.Parameter(torch.empty(size))
        self.far_key = nn.Parameter(torch.empty(size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=_STD)

    def forward(self, distances: Tensor) -> Tensor:
        """The bias at integer distances [N]."""
        near = self.table[(distances + self.max_length - 1).clamp(0, 2 * self.max_length - 2)]
        # In half precision an angle of thousands is off by full rotations.
        dtype = accumulation_dtype(self.far_query.dtype)
        query, key = self.far_query.to(dtype), self.far_key.to(dtype)
        angles = distances[:, None] * rope_inverse_frequencies(len(query), query.device, dtype)
        query = rotate_pairs(query.expand(len(distances), 1, -1), angles).squeeze(1)  # [N, S]
        far = (query * key).sum(dim=-1).to(near.dtype)
        return torch.where(distances.abs() < self.max_length, near, far)

    def behind(self, distances: Tensor, limit: int) -> Tensor:
        """The bias at distances from 0 to limit - 1, each computed once; beyond them the nearest of these."""
        return self(torch.arange(limit, device=distances.device))[distances.clamp(0, limit - 1)]

    def pairwise(self, length: int, device: torch.device) -> Tensor:
        """The bias between all pairs of `length` tokens: [length, length]."""
        by_distance = self(torch.arange(length - 1, -length, -1, device=device))
        # Row i runs from distance i down to i + 1 - length: a window that moves by one, whose gradient needs no sort.
        return by_distance.unfold(0, length, 1).flip(0)


def squared_relu(scores: Tensor, scale: int, bias: Tensor) -> Tensor:
    """relu(scores / scale + bias)², in float32: half precision would overflow on the square."""
    return (scores.to(accumulation_dtype(scores.dtype)) / scale + bias).relu().square()


class GatedUnit(Mixer):
    """Everything of the unit but its attention. `num_pairs` queries and as many keys are made of z."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        causal: bool,
        max_length: int,
        *,
        num_pairs: int,
        expansion: int,
        query_key_size: int,
        position: str,
    ) -> None:
        super().__init__(hidden_size, num_heads, causal, max_length)
        if expansion < 1:
            raise ConfigError(f"{self.name}: expansion must be at least 1, got {expansion}")
        if query_key_size < 2 or query_key_size % 2:
            raise ConfigError(
                f"{self.name}: query_key_size must be even, got {query_key_size}", "the paper's value is 128"
            )
        if max_length < 1:
            raise ConfigError(f"{self.name}: max_length must be at least 1, got {max_length}")
        self.num_pairs = num_pairs
        self.gate_proj = nn.Linear(hidden_size, expansion * hidden_size)
        self.value_proj = nn.Linear(hidden_size, expansion * hidden_size)
        self.base_proj = nn.Linear(hidden_size, query_key_size)
        self.o_proj = nn.Linear(expansion * hidden_size, hidden_size)
        self.gamma = nn.Parameter(torch.empty(2 * num_pairs, query_key_size))
        self.beta = nn.Parameter(torch.empty(2 * num_pairs, query_key_size))
        self.rotation = Rotation(position, query_key_size)
        self.bias = DistanceBias(max_length, query_key_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.gamma, std=_STD)
        nn.init.zeros_(self.beta)
        self.bias.reset_parameters()

    def queries_keys(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys of x [B, T, hidden_size], each [B, T, num_pairs, query_key_size]."""
        both = F.silu(self.base_proj(x)).unsqueeze(-2) * self.gamma + self.beta
        q, k = both.split(self.num_pairs, dim=-2)
        return self.rotation.rotate(q, k, positions)

    def values(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """v [B, T, expansion · hidden_size]. Attention has no denominator: a zero value hides a padded key entirely."""
        return zero_padding(F.silu(self.value_proj(x)), mask)

    def gated(self, x: Tensor, attended: Tensor) -> Tensor:
        """W(u ⊙ o): [B, T, hidden_size]."""
        return self.o_proj(F.silu(self.gate_proj(x)) * attended)
