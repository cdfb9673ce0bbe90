"""Informer: exact attention for the few most selective queries, mean(V) for the rest (Zhou et al. 2021)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from transnormer.errors import ConfigError
from transnormer.mixers.components.counter_rng import draw_below, fresh_seed
from transnormer.mixers.components.matrix import identity_values
from transnormer.mixers.contract import ProjectedMixer, State, Traits, real_tokens
from transnormer.mixers.registry import register
from transnormer.ops.autocast import without_autocast
from transnormer.ops.shapes import accumulation_dtype, zero_padding

# Sampled keys are gathered this many draws at a time: all at once would hold T log T vectors per head.
_DRAWS_AT_ONCE = 16


@register("informer")
class InformerAttention(ProjectedMixer):
    """u = min(n, factor · ⌈ln n⌉) queries attend to all keys, the others take the mean of the values (section 3).

    A query's measure is M = max s - Σ s / n over its scores s with u keys, drawn with replacement for each query and
    shared by the heads. n counts the row's real tokens; draws are a function of the seed, the position and n, so that
    neither padding nor the batch changes the choice. The choice itself has no gradient. There is no causal form: which
    queries are active depends on the whole sequence.

    `redraw` takes new draws in each training step, as the paper does; evaluation always uses the seeded ones.
    `skyformer_compat` (the published LRA rows, with factor 19, 17 and 16 for 1024, 2048 and 4096 tokens) treats
    padding as tokens and takes new draws in evaluation too.
    """

    traits = Traits(
        summary="exact attention for the most selective queries, mean of the values for the others",
        paper="Zhou et al. 2021, Informer",
        cost="T log T",
    )

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        causal: bool,
        max_length: int,
        *,
        factor: int = 5,
        seed: int = 0,
        redraw: bool = True,
        skyformer_compat: bool = False,
    ) -> None:
        super().__init__(hidden_size, num_heads, causal, max_length)
        if factor < 1:
            raise ConfigError(f"informer: factor must be at least 1, got {factor}")
        self.factor = factor
        self.seed = seed
        self.redraw = redraw
        self.skyformer_compat = skyformer_compat

    def mix(self, x: Tensor, mask: Tensor | None, state: State | None) -> Tensor | tuple[Tensor, State]:
        q, k, v = self.project(x)
        return self.o_proj(self._attend(q, k, v, mask).flatten(-2))

    def matrix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Rows of softmax for the active queries, for all others equal weights."""
        q, k, _ = self.project(x)
        weights = self._attend(q, k, identity_values(q, self.num_heads), mask)
        return weights.transpose(1, 2)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Of q, k [B, T, H, D] and v [B, T, H, E]: [B, T, H, E]."""
        seen = None if self.skyformer_compat else mask
        length, count = q.shape[1], real_tokens(q, seen)
        with torch.no_grad():
            measure = selectivity(q, k, *self.sample_keys(count, length), count)  # [B, H, T]
            if seen is not None:
                measure = measure.masked_fill(~seen.bool()[:, None, :], -torch.inf)
            # Rows may have different u: take as many as the longest could have, and use the first u of each row.
            top = measure.topk(self.most_active(length), dim=-1).indices[..., None]  # [B, H, U, 1]
        active = torch.arange(top.shape[2], device=q.device) < self.num_active(count)[:, None]  # [B, U]

        q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # [B, H, T, D]
        chosen_q = q.gather(2, top.expand(-1, -1, -1, q.shape[-1]))
        exact = F.scaled_dot_product_attention(chosen_q, k, v, attn_mask=self._visible(seen))
        mean = _mean_value(v, seen, count)
        chosen = torch.where(active[:, None, :, None], exact.to(v.dtype), mean)
        out = mean.expand_as(v).scatter(2, top.expand_as(chosen), chosen)
        return zero_padding(out.transpose(1, 2), mask)

    def most_active(self, length: int) -> int:
        """The number of active queries of a sequence of this length; at least one."""
        return max(min(length, self.factor * math.ceil(math.log(length))), 1)

    def num_active(self, count: Tensor) -> Tensor:
        """`most_active` of each row's number of real tokens [B]."""
        # No power of e comes so near to a whole number that float32 would round its logarithm to the wrong side.
        logarithm = count.clamp(min=1).float().log().ceil().long()
        return torch.minimum(count, self.factor * logarithm).clamp(min=1)

    def sample_keys(self, count: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """For each query the positions of its sampled keys [B, T, U], and which draws its row makes [B, 1, U]."""
        fresh = self.skyformer_compat or (self.training and self.redraw)
        seed = fresh_seed(count.device) if fresh else self.seed
        query = torch.arange(length, device=count.device)[:, None]
        draw = torch.arange(self.most_active(length), device=count.device)
        index = draw_below(count[:, None, None], seed, query, draw)
        return index, draw < self.num_active(count)[:, None, None]

    def _visible(self, mask: Tensor | None) -> Tensor | None:
        if mask is None:
            return None
        # A row without any real token looks at its first position, so that no row of the softmax is empty.
        first = torch.arange(mask.shape[1], device=mask.device) == 0
        return (mask.bool() | first)[:, None, None, :]


def selectivity(q: Tensor, k: Tensor, index: Tensor, drawn: Tensor, count: Tensor) -> Tensor:
    """M of each query [B, H, T]: how far its largest sampled score rises above their sum over the length."""
    rows = torch.arange(q.shape[0], device=q.device)[:, None, None]
    wide = accumulation_dtype(q.dtype)
    best = torch.full(q.shape[:3], -torch.inf, dtype=wide, device=q.device)
    total = torch.zeros_like(best)
    for some, made in zip(index.split(_DRAWS_AT_ONCE, dim=-1), drawn.split(_DRAWS_AT_ONCE, dim=-1), strict=True):
        # Rounded to 8 bits, many queries would tie.
        with without_autocast(q.device):
            scores = torch.einsum("bthd,btuhd->bthu", q.to(wide), k[rows, some].to(wide))
        made = made.unsqueeze(2)  # [B, 1, 1, U]
        best = torch.maximum(best, scores.masked_fill(~made, -torch.inf).amax(dim=-1))
        total = total + scores.masked_fill(~made, 0).sum(dim=-1)
    return (best - total / count.clamp(min=1)[:, None, None]).transpose(1, 2)


def _mean_value(v: Tensor, mask: Tensor | None, count: Tensor) -> Tensor:
    """The mean of the real values of v [B, H, T, D]: [B, H, 1, D]."""
    wide = v.to(accumulation_dtype(v.dtype))
    if mask is not None:
        wide = wide.masked_fill(~mask.bool()[:, None, :, None], 0)
    return (wide.sum(dim=2, keepdim=True) / count.clamp(min=1)[:, None, None, None]).to(v.dtype)
