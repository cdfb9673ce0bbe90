"""Skyformer: Nyström approximation of kernelized attention on the queries and keys together (Chen et al. 2021).

The Gaussian kernel of X = [Q̂; K̂] with itself is positive definite, so it has a Nyström approximation C(W + λI)⁻¹Cᵀ,
C being the kernel between X and a sample of X, W the kernel of the sample; attention is the block of queries by keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from transnormer.errors import ConfigError
from transnormer.mixers.components.counter_rng import draw_below, fresh_seed
from transnormer.mixers.components.landmarks import iterative_pseudo_inverse, segments
from transnormer.mixers.components.matrix import identity_values, visible_pairs
from transnormer.mixers.components.packing import take
from transnormer.mixers.components.precision import widened
from transnormer.mixers.contract import AttentionMixer, State, Traits, real_tokens
from transnormer.mixers.kernelized import gaussian_kernel
from transnormer.mixers.registry import register
from transnormer.ops.autocast import without_autocast
from transnormer.ops.shapes import zero_padding

# λ, which bounds the condition of W.
_RIDGE = 0.1


@register("skyformer")
class SkyformerAttention(AttentionMixer):
    """`num_features` landmarks: half are queries, half keys, one drawn uniformly from each of as many segments.

    Drawn that way no token is taken twice, which keeps W well conditioned. In training every step draws anew unless
    `redraw` is off; evaluation always draws from `seed`. W̃ = D^(-1/2)(W + λI)D^(-1/2), D its row sums, is inverted by
    `iterations` of the pseudo-inverse. `skyformer_compat` reproduces the published code: samples with replacement,
    drawn anew in evaluation too, 32^(-1/4) as scale for any head size, an inverse whose start depends on the batch.
    """

    traits = Traits(
        summary="Nyström approximation of the Gaussian kernel from sampled tokens",
        paper="Chen et al. 2021, Skyformer: Remodel Self-Attention with Gaussian Kernel",
        cost="T",
    )

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        causal: bool,
        max_length: int,
        *,
        num_features: int = 128,
        iterations: int = 6,
        redraw: bool = True,
        seed: int = 0,
        skyformer_compat: bool = False,
    ) -> None:
        super().__init__(hidden_size, num_heads, causal, max_length)
        if not 2 <= num_features <= 2 * max_length or num_features % 2:
            raise ConfigError(
                f"skyformer: num_features must be even, from 2 to 2·max_length = {2 * max_length}, got {num_features}",
                "set the option num_features; half of them are queries, half keys",
            )
        if iterations < 1:
            raise ConfigError(f"skyformer: iterations must be at least 1, got {iterations}", "the default is 6")
        self.iterations = iterations
        self.redraw = redraw
        self.skyformer_compat = skyformer_compat
        self.seed = seed
        self.num_features = num_features

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, state: State | None) -> Tensor:
        dtype = v.dtype
        with without_autocast(v.device):
            q, k, v = widened(q, k, zero_padding(v, mask))
            out = self._approximate(q, k, v, mask)
        return self.o_proj(out.transpose(1, 2).flatten(-2).to(dtype))

    def matrix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """The approximated kernel; an entry may be negative, which the kernel itself never is."""
        q, k, _ = self.project(x)
        q, k, values = widened(q, k, identity_values(q, self.num_heads))
        weights = self._approximate(q, k, values, mask)
        return weights.masked_fill(~visible_pairs(x, mask, causal=False), 0)

    def _approximate(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Of q, k [B, T, H, D] and v [B, T, H, E]: [B, H, T, E]."""
        scale = (32 if self.skyformer_compat else self.head_dim) ** -0.25
        q, k = q * scale, k * scale
        # A row that is all padding counts as one token.
        positions, exists = self.sample(real_tokens(q, mask).clamp(min=1), q.shape[1])
        landmarks = torch.cat([take(q, positions[0]), take(k, positions[1])], dim=1)  # [B, m, H, D]
        q, k, v, landmarks = (x.transpose(1, 2) for x in (q, k, v, landmarks))
        return self._through(q, k, v, landmarks, torch.cat([exists, exists], dim=1))

    def sample(self, lengths: Tensor, size: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Positions [B, n] of the sampled queries and keys of rows padded to `size`, and which exist: [B, n]."""
        fresh = self.skyformer_compat or (self.redraw and self.training)
        seed = fresh_seed(lengths.device) if fresh else self.seed
        if self.skyformer_compat:
            sizes = lengths[:, None].expand(-1, self.num_features // 2)
            starts = torch.zeros_like(sizes)
        else:
            starts, sizes = segments(lengths, min(self.num_features // 2, size))
        index = 2 * torch.arange(sizes.shape[1], device=lengths.device)
        queries, keys = (starts + draw_below(sizes, seed, index + kind) for kind in (0, 1))
        return (queries.clamp(max=size - 1), keys.clamp(max=size - 1)), sizes > 0

    def _through(self, q: Tensor, k: Tensor, v: Tensor, landmarks: Tensor, exists: Tensor) -> Tensor:
        """C_Q D^(-1/2) W̃⁻¹ D^(-1/2) C_Kᵀ V for q, k, v [B, H, T, D]; `exists` [B, m] marks the real landmarks."""
        ridge = _RIDGE * torch.eye(landmarks.shape[-2], dtype=q.dtype, device=q.device)
        real = exists[:, None, :, None]
        # A landmark that does not exist is a zero row and column, and stays one in the inverse.
        core = (gaussian_kernel(landmarks, landmarks) + ridge).masked_fill(~(real & real.mT), 0)
        shrink = core.sum(dim=-1, keepdim=True).masked_fill(~real, 1).rsqrt().masked_fill(~real, 0)
        core = shrink * core * shrink.mT
        inverse = iterative_pseudo_inverse(core, self.iterations, batch_scale=self.skyformer_compat)
        gathered = gaussian_kernel(landmarks, k) @ v
        return gaussian_kernel(q, landmarks) @ (shrink * (inverse @ (shrink * gathered)))
