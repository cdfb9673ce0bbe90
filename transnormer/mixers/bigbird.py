"""BigBird: block-sparse softmax attention, global + window + random blocks (Zaheer et al. 2020, ITC)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from transnormer.errors import ConfigError
from transnormer.mixers.components.bigbird_plan import published_plan, random_plan
from transnormer.mixers.components.matrix import identity_values
from transnormer.mixers.contract import ProjectedMixer, State, Traits
from transnormer.mixers.registry import register
from transnormer.ops.shapes import zero_padding


@register("bigbird")
class BigBirdAttention(ProjectedMixer):
    """The first and last block see and are seen by all; the others see themselves, both neighbours and r random ones.

    The last block is the one that holds the row's last real token, and a row of at most 5 + 2r blocks is dense, as in
    transformers. Random blocks come from the whole row, another choice for each head and block and none twice: a key
    counts once in the softmax. They are fixed by the seed, in training too.

    `skyformer_compat` (the published LRA rows) is the plan of transformers' BigBirdBlockSparseAttention in training:
    random blocks from the first 1024 tokens (lengths 1024, 3072, 4096) or the first 5 + 2r blocks (others), where a
    block that the window or the global blocks hold already may come again and counts twice; blocks are counted with
    the padding.
    """

    traits = Traits(
        summary="softmax attention to global, neighbouring and random blocks",
        paper="Zaheer et al. 2020, Big Bird",
        cost="T",
    )

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        causal: bool,
        max_length: int,
        *,
        block_size: int = 64,
        num_random_blocks: int = 3,
        seed: int = 0,
        skyformer_compat: bool = False,
    ) -> None:
        super().__init__(hidden_size, num_heads, causal, max_length)
        for option, value, least in (("block_size", block_size, 1), ("num_random_blocks", num_random_blocks, 0)):
            if value < least:
                raise ConfigError(f"bigbird: {option} must be at least {least}, got {value}")
        if not 0 <= seed < 2**32:
            raise ConfigError(f"bigbird: seed must be in [0, 2^32), got {seed}")
        self.block_size = block_size
        self.num_random_blocks = num_random_blocks
        self.seed = seed
        self.skyformer_compat = skyformer_compat
        self.dense_length = (5 + 2 * num_random_blocks) * block_size

    def mix(self, x: Tensor, mask: Tensor | None, state: State | None) -> Tensor | tuple[Tensor, State]:
        q, k, v = self.project(x)
        return self.o_proj(self._attend(q, k, v, mask).flatten(-2))

    def matrix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, _ = self.project(x)
        weights = self._attend(q, k, identity_values(q, self.num_heads), mask)
        return weights.transpose(1, 2)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Of q, k [B, T, H, D] and v [B, T, H, E]: [B, T, H, E]."""
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # [B, H, T, D]
        length = q.shape[2]
        if length <= self.dense_length:
            out = _dense(q, k, v, mask)
        else:
            out = self._sparse(q, k, v, mask)
            if mask is not None and not self.skyformer_compat:
                # Which rows are short is data: both are computed and one is taken, at a cost that T does not change.
                q, k, v = (t[:, :, : self.dense_length] for t in (q, k, v))
                dense = F.pad(_dense(q, k, v, mask[:, : self.dense_length]), (0, 0, 0, length - self.dense_length))
                out = torch.where((mask.long().sum(dim=1) <= self.dense_length)[:, None, None, None], dense, out)
        return zero_padding(out.transpose(1, 2), mask)

    def plan(self, num_blocks: Tensor, total: int) -> Tensor:
        """Random key blocks [B, H, total, r] of each block, for rows of num_blocks [B] blocks."""
        if self.skyformer_compat:
            table = published_plan(
                total, self.block_size, self.num_heads, self.num_random_blocks, self.max_length, self.seed
            )
            return torch.from_numpy(table).to(num_blocks.device)[None]
        return random_plan(num_blocks, total, self.num_heads, self.num_random_blocks, self.seed)

    def _sparse(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        batch, heads, length, _ = q.shape
        size = self.block_size
        q, k, v = (F.pad(t, (0, 0, 0, -length % size)) for t in (q, k, v))
        total = q.shape[2] // size
        count = torch.full((1,), length, device=q.device) if mask is None else mask.long().sum(dim=1)
        real = torch.arange(total * size, device=q.device) < count.clamp(min=1)[:, None]  # [B or 1, T]
        num_blocks = (count.clamp(min=1) + size - 1) // size
        if self.skyformer_compat:
            num_blocks = torch.full_like(num_blocks, total)

        q_blocks, k_blocks, v_blocks = (t.unflatten(2, (total, size)) for t in (q, k, v))  # [B, H, N, w, D]
        seen, valid = self._seen_blocks(num_blocks, total)
        index = seen.expand(batch, heads, -1, -1).flatten(2)[..., None, None]
        keys, values = (
            t.gather(2, index.expand(-1, -1, -1, *t.shape[3:])).unflatten(2, (total, -1)).flatten(3, 4).flatten(0, 1)
            for t in (k_blocks, v_blocks)
        )  # [B·H, N, S·w, D]
        real_blocks = real.unflatten(1, (total, size))  # [B or 1, N, w]
        rows = torch.arange(real.shape[0], device=q.device)[:, None, None, None]
        visible = (real_blocks[rows, seen] & valid[..., None]).flatten(3)  # [B or 1, H, N, S·w]
        visible = visible.expand(batch, heads, -1, -1).flatten(0, 1).unsqueeze(2)
        out = F.scaled_dot_product_attention(q_blocks.flatten(0, 1), keys, values, attn_mask=visible)
        out = out.unflatten(0, (batch, heads))

        # The two global blocks see every real key.
        last = (num_blocks - 1).expand(batch)
        ends = torch.stack([torch.zeros_like(last), last], dim=1)[:, None, :, None, None]  # [B, 1, 2, 1, 1]
        ends = ends.expand(-1, heads, -1, -1, -1)
        wide_q = q_blocks.gather(2, ends.expand(-1, -1, -1, *q_blocks.shape[3:])).flatten(2, 3)
        every_key = real[:, None, None, :].expand(batch, -1, -1, -1)
        wide = F.scaled_dot_product_attention(wide_q, k, v, attn_mask=every_key)
        wide = wide.unflatten(2, (2, size))
        out = out.scatter(2, ends.expand_as(wide), wide)
        return out.flatten(2, 3)[:, :, :length]

    def _seen_blocks(self, num_blocks: Tensor, total: int) -> tuple[Tensor, Tensor]:
        """The key blocks of each block [B, H, N, S], S = 5 + r, and which of them are not there a second time."""
        own = torch.arange(total, device=num_blocks.device)
        last = (num_blocks - 1)[:, None].expand(-1, total)
        own = own.expand_as(last)
        fixed = torch.stack([torch.zeros_like(own), own - 1, own, own + 1, last], dim=-1)  # [B, N, 5]
        always = torch.ones_like(own, dtype=torch.bool)
        once = torch.stack([always, own > 1, always, own + 1 < last, always], dim=-1)
        fixed, once = (t[:, None].expand(-1, self.num_heads, -1, -1) for t in (fixed, once))
        random = self.plan(num_blocks, total).expand(num_blocks.shape[0], -1, -1, -1)
        seen = torch.cat([fixed, random], dim=-1).clamp(0, total - 1)
        return seen, torch.cat([once, torch.ones_like(random, dtype=torch.bool)], dim=-1)


def _dense(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Full attention of [B, H, T, D]."""
    visible = None
    if mask is not None:
        # Padded queries look at themselves, so that no row of the softmax is empty.
        visible = (mask.bool()[:, None, :] | torch.eye(q.shape[2], dtype=torch.bool, device=q.device)).unsqueeze(1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
