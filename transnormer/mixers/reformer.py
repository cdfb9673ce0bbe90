"""Reformer: softmax attention among tokens that a random rotation hashes together (Kitaev et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transnormer.errors import ConfigError
from transnormer.mixers.components.initialisation import is_loaded
from transnormer.mixers.components.lsh import chunks_by_bucket, default_num_buckets, hash_buckets
from transnormer.mixers.components.positions import token_positions
from transnormer.mixers.components.state import append_right_aligned, right_aligned_positions
from transnormer.mixers.contract import Mixer, State, Traits, XavierLinear, real_tokens
from transnormer.mixers.registry import register
from transnormer.ops.shapes import accumulation_dtype, zero_padding

# A token sees itself only when it sees nothing else, and what is hidden less than that: both weights round to zero.
_SELF, _HIDDEN = -1e5, -1e9
_EPSILON = 1e-6


class _UnbiasedProjection(nn.Linear):
    """The projection to queries and keys, or to values: it starts as those of the other mixers do."""

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight, gain=2**-0.5)


@register("reformer")
class ReformerAttention(Mixer):
    """Queries are keys: k = q / rms(q) / √D, so a token hides itself. Rounds are mixed by their softmax denominators.

    Bidirectional, as in transformers' LSHSelfAttention: sort by bucket, cut into chunks, attend to the own chunk and
    the one before, whatever its bucket, the first one to the last of the round before. All of it counts real tokens
    only, so that a row equals that implementation with no more padding than fills its last chunk. Up to one chunk of
    tokens this is dense attention.

    Causal, the paper's chunks leak: where a chunk begins depends on how many tokens, later ones too, fall into smaller
    buckets. Hiding later tokens from the scores does not mend it, since they have decided by then which of the earlier
    tokens share a chunk. So that form is not offered. Here each bucket is cut by itself, from its first token on, and a
    token attends to its chunk and the one before in its own bucket: the last c to 2c - 1 earlier tokens of the bucket,
    or all while there are fewer. That is causal bit for bit. It never looks across buckets, and it hashes short
    sequences too, since how a token is mixed must not depend on what follows. For the same reason the number of buckets
    follows `max_length`, not the sequence at hand. Decoding keeps all keys; new tokens behind a cache cost their number
    times the length of the sequence.

    Rotations are drawn when the layer is built, from `seed` (None: from torch's generator, as the weights are), and
    saved with it. `redraw` takes new ones in each training step, as the paper does; evaluation always uses the saved
    ones. `skyformer_compat` (the published LRA rows) takes new ones in evaluation too.
    """

    traits = Traits(
        summary="softmax attention inside hash buckets, shared queries and keys",
        paper="Kitaev et al. 2020, Reformer",
        cost="T log T",
        cache="full_attention",
        no_matrix="each hashing round attends in buckets of its own, with itself as a last resort",
    )
    rotations: Tensor

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        causal: bool,
        max_length: int,
        *,
        num_hashes: int = 2,
        chunk_size: int = 64,
        num_buckets: int | Sequence[int] | None = None,
        seed: int | None = None,
        redraw: bool = True,
        skyformer_compat: bool = False,
    ) -> None:
        super().__init__(hidden_size, num_heads, causal, max_length)
        for option, value in (("num_hashes", num_hashes), ("chunk_size", chunk_size)):
            if value < 1:
                raise ConfigError(f"reformer: {option} must be at least 1, got {value}")
        if num_buckets is None:
            factors = default_num_buckets(max_length, chunk_size)
        else:
            factors = [num_buckets] if isinstance(num_buckets, int) else list(num_buckets)
        if not factors or any(factor < 2 or factor % 2 for factor in factors):
            raise ConfigError(
                f"reformer: num_buckets must be an even number, or a list of them to multiply, got {num_buckets}",
                "a bucket is a rotated axis or its negative; leave num_buckets out to derive it from the length",
            )
        if causal and skyformer_compat:
            raise ConfigError(
                "reformer: skyformer_compat is for bidirectional models",
                "a decoding step must hash as the steps before it did",
            )
        self.num_hashes = num_hashes
        self.chunk_size = chunk_size
        self.bucket_factors = factors
        self.seed = seed
        self.redraw = redraw
        self.skyformer_compat = skyformer_compat
        self.qk_proj = _UnbiasedProjection(hidden_size, hidden_size, bias=False)
        self.v_proj = _UnbiasedProjection(hidden_size, hidden_size, bias=False)
        self.o_proj = XavierLinear(hidden_size, hidden_size, zero_bias=True)
        self.register_buffer("rotations", torch.empty(num_heads, self.head_dim, num_hashes, sum(factors) // 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if is_loaded(self.rotations):
            return
        generator = None if self.seed is None else torch.Generator().manual_seed(self.seed)
        self.rotations.copy_(torch.randn(self.rotations.shape, generator=generator, device="cpu"))

    def mix(self, x: Tensor, mask: Tensor | None, state: State | None) -> Tensor | tuple[Tensor, State]:
        qk, v = self.split_heads(self.qk_proj(x)), self.split_heads(self.v_proj(x))
        if not self.causal and x.shape[1] <= self.chunk_size:
            return self._project(self._dense(qk, v, mask), mask)
        if state is None:
            fresh = self.skyformer_compat or (self.training and self.redraw)
            rotations = torch.randn_like(self.rotations) if fresh else self.rotations
            out = self._causal(qk, v, rotations) if self.causal else self._sorted(qk, v, mask, rotations)
            return self._project(out, mask)
        counts = None if mask is None else real_tokens(x, mask)
        keys = append_right_aligned(state.get("keys"), qk, counts)
        values = append_right_aligned(state.get("values"), v, counts)
        new_state = {"length": state["length"] + real_tokens(x, mask), "keys": keys, "values": values}
        if "keys" not in state:
            return self._project(self._causal(qk, v, self.rotations), mask), new_state
        key_positions = right_aligned_positions(new_state["length"], keys.shape[1])
        out = self._behind_cache(qk, token_positions(x, state["length"]), keys, values, key_positions)
        return self._project(out, mask), new_state

    def _project(self, out: Tensor, mask: Tensor | None) -> Tensor:
        """The output projection of out [B, H, T, D]."""
        return self.o_proj(zero_padding(out.transpose(1, 2).to(self.o_proj.weight.dtype), mask).flatten(-2))

    def _dense(self, qk: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Every token sees every real one."""
        q, k, v = _by_head(qk), _normalised(_by_head(qk)), _by_head(v)
        hidden = () if mask is None else (~mask.bool()[:, None, None, :],)
        itself = torch.eye(qk.shape[1], dtype=torch.bool, device=qk.device)
        return _attend(q, k, v, hidden, itself)[0]

    def _sorted(self, qk: Tensor, v: Tensor, mask: Tensor | None, rotations: Tensor) -> Tensor:
        """Chunks of the tokens sorted by bucket; padding comes last in each round."""
        length, size = qk.shape[1], self.chunk_size
        count = real_tokens(qk, mask)
        qk, v = (F.pad(t, (0, 0, 0, 0, 0, -length % size)) for t in (qk, v))
        real = torch.arange(qk.shape[1], device=qk.device) < count[:, None]  # [B, T]
        buckets = hash_buckets(qk, rotations, self.bucket_factors)
        buckets = buckets.masked_fill(~real[:, None, None, :], math.prod(self.bucket_factors))
        order = buckets.argsort(dim=-1, stable=True)
        last_chunk = (count - 1).clamp(min=0) // size

        def with_previous(chunks: Tensor) -> Tensor:
            """Chunks [B, H, R, C, c, ...], each behind the one before it."""
            last = last_chunk.reshape(-1, *[1] * (chunks.dim() - 1)).expand_as(chunks[:, :, :, :1])
            first = chunks.gather(3, last).roll(1, dims=2)
            return torch.cat([torch.cat([first, chunks[:, :, :, :-1]], dim=3), chunks], dim=4)

        tokens = order.unflatten(-1, (-1, size))  # [B, H, R, C, c]
        q, k, v = _by_head(qk), _normalised(_by_head(qk)), _by_head(v)
        q, k, v = _take(q, tokens), with_previous(_take(k, tokens)), with_previous(_take(v, tokens))
        seen = with_previous(tokens)[..., None, :]
        out, weight = _attend(q, k, v, (seen >= count.reshape(-1, 1, 1, 1, 1, 1),), seen == tokens[..., None])
        return _mix_rounds(out, weight, order.argsort(dim=-1))[:, :, :length]

    def _causal(self, qk: Tensor, v: Tensor, rotations: Tensor) -> Tensor:
        """Chunks of each bucket by itself; right padding comes later than every real token and needs no mask."""
        buckets = hash_buckets(qk, rotations, self.bucket_factors)
        layout = chunks_by_bucket(buckets, math.prod(self.bucket_factors), self.chunk_size)
        size, before = self.chunk_size, layout.previous[..., None].expand_as(layout.tokens)
        seen = torch.cat([layout.tokens.gather(3, before), layout.tokens], dim=-1)  # [B, H, R, C, 2c]
        # Slots fill in the order of the sequence: the chunk before is full or absent, and the own one is full up to the
        # query. What stands in an empty slot, here the first token, no query of the sequence sees.
        slot = torch.arange(-size, size, device=qk.device)
        own = slot[size:, None]
        tokens, absent = layout.tokens.clamp(min=0), (seen < 0) & (slot < 0)
        q, k, v = _by_head(qk), _normalised(_by_head(qk)), _by_head(v)
        q, k, v = _take(q, tokens), _take(k, seen.clamp(min=0)), _take(v, seen.clamp(min=0))
        out, weight = _attend(q, k, v, (absent[..., None, :], slot > own), slot == own)
        return _mix_rounds(out, weight, layout.index)

    def _behind_cache(
        self, qk: Tensor, positions: Tensor, keys: Tensor, values: Tensor, key_positions: Tensor
    ) -> Tensor:
        """New tokens against all keys, which include them: the same sets of tokens as `_causal`, by counting."""
        key_buckets = hash_buckets(keys, self.rotations, self.bucket_factors).unsqueeze(-2)  # [B, H, R, 1, L]
        k, v = (_by_head(t).unsqueeze(2) for t in (_normalised(keys), values))
        outs = []
        for new, at in zip(qk.split(self.chunk_size, dim=1), positions.split(self.chunk_size, dim=1), strict=True):
            at, known = at[:, None, None, :, None], key_positions[:, None, None, None, :]
            new_buckets = hash_buckets(new, self.rotations, self.bucket_factors).unsqueeze(-1)
            bucket = (new_buckets == key_buckets) & (known >= 0) & (known <= at)  # [B, H, R, T, L]
            chunk = (bucket.cumsum(dim=-1) - 1) // self.chunk_size
            visible = bucket & (chunk >= chunk[..., -1:] - 1)
            out, weight = _attend(_by_head(new).unsqueeze(2), k, v, (~visible,), known == at)
            outs.append(_mix_rounds(out, weight, None))
        return torch.cat(outs, dim=2)


def _by_head(x: Tensor) -> Tensor:
    return x.transpose(1, 2)  # [B, T, H, D] -> [B, H, T, D]


def _normalised(x: Tensor) -> Tensor:
    """The key of a query: unit root mean square, and 1/√D so that scores need no further scale."""
    wide = x.to(accumulation_dtype(x.dtype))
    return (wide * (wide.square().mean(dim=-1, keepdim=True) + _EPSILON).rsqrt() * x.shape[-1] ** -0.5).to(x.dtype)


def _take(x: Tensor, tokens: Tensor) -> Tensor:
    """Rows of x [B, H, T, D] at tokens [B, H, R, ...]: [B, H, R, ..., D]."""
    rounds, flat = tokens.shape[2], tokens.flatten(3).unsqueeze(-1)
    x = x.unsqueeze(2).expand(-1, -1, rounds, -1, -1).gather(3, flat.expand(*flat.shape[:-1], x.shape[-1]))
    return x.unflatten(3, tokens.shape[3:])


def _attend(q: Tensor, k: Tensor, v: Tensor, hidden: Sequence[Tensor], itself: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax attention on the last two axes, and the logarithm of its denominator."""
    scores = (q @ k.mT).to(accumulation_dtype(q.dtype))
    for pairs in hidden:
        scores = scores.masked_fill(pairs, _HIDDEN)
    scores = scores.masked_fill(itself, _SELF)
    # A token alone has scores near -1e5, where exp(score - logarithm of the sum) has no digits left in float32.
    highest = scores.amax(dim=-1, keepdim=True).detach()
    weights = (scores - highest).exp()
    total = weights.sum(dim=-1, keepdim=True)
    return (weights.to(v.dtype) @ v) / total, highest + total.log()


def _mix_rounds(out: Tensor, weight: Tensor, index: Tensor | None) -> Tensor:
    """Mix the rounds of out [B, H, R, ..., D] by their denominators, tokens taken from index [B, H, R, T]."""
    if index is not None:
        out, weight = out.flatten(3, 4), weight.flatten(3, 4)
        out = out.gather(3, index[..., None].expand(*index.shape, out.shape[-1]))
        weight = weight.gather(3, index[..., None])
    return (out * weight.softmax(dim=2)).sum(dim=2)
