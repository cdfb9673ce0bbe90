"""Transformer-LS: a window of near tokens and a low-rank summary of far ones under one softmax (Zhu et al. 2021).

The summary is a few weighted means of keys and values; which tokens weigh how much is a softmax over positions that the
tokens themselves decide. Bidirectional, the means run over the whole sequence. Causal, over each chunk of it, and a
token sees the chunks strictly before its own; positions are then relative, as in Transformer-XL.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transnormer.errors import ConfigError
from transnormer.mixers.components.positions import sinusoidal_embedding, token_positions
from transnormer.mixers.components.state import append_right_aligned, right_aligned_positions
from transnormer.mixers.contract import ProjectedMixer, State, Traits, XavierLinear, real_tokens
from transnormer.mixers.registry import register
from transnormer.ops.shapes import accumulation_dtype, zero_padding


@register("long_short")
class LongShortAttention(ProjectedMixer):
    """`window_size`: 8 bidirectional, where a segment of so many tokens sees half as many on each side, and 64 causal,
    where a token sees so many including itself. `num_landmarks` means serve the bidirectional form, `chunk_rank` means
    for every `chunk_size` tokens the causal one. Each row starts without the memory of the sequences before it.
    """

    traits = Traits(
        summary="window attention and a dynamic low-rank summary, one softmax",
        paper="Zhu et al. 2021, Long-Short Transformer",
        cost="T (causal: T^2)",
        cache="full_attention",
        no_matrix="far tokens are seen as a few normalised means, not one by one",
    )
    qkv_gain = 1.0

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        causal: bool,
        max_length: int,
        *,
        window_size: int | None = None,
        num_landmarks: int = 32,
        chunk_size: int = 32,
        chunk_rank: int = 1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(hidden_size, num_heads, causal, max_length)
        window_size = (64 if causal else 8) if window_size is None else window_size
        sizes = {"window_size": window_size, "num_landmarks": num_landmarks, "chunk_size": chunk_size}
        for option, value in {**sizes, "chunk_rank": chunk_rank}.items():
            if value < 1:
                raise ConfigError(f"long_short: {option} must be at least 1, got {value}")
        if not causal and num_landmarks > max_length:
            raise ConfigError(
                f"long_short: {num_landmarks} landmarks for sequences of at most {max_length} tokens",
                "a summary must be shorter than the sequence: lower num_landmarks",
            )
        if causal and chunk_rank >= chunk_size:
            raise ConfigError(
                f"long_short: chunk_rank {chunk_rank} does not shorten a chunk of {chunk_size} tokens",
                "choose a smaller chunk_rank",
            )
        self.window_size = window_size
        self.chunk_size = chunk_size
        self.rank = chunk_rank if causal else num_landmarks
        self.dropout = dropout
        self.summary_proj = XavierLinear(hidden_size, num_heads * self.rank, zero_bias=True)
        self.window_norm = nn.LayerNorm(hidden_size)
        self.summary_norm = nn.LayerNorm(hidden_size)
        if causal:
            self.window_position = XavierLinear(hidden_size, hidden_size, zero_bias=True)
            self.chunk_position = XavierLinear(hidden_size, hidden_size, zero_bias=True)
            self.content_bias = nn.Parameter(torch.empty(num_heads, self.head_dim))
            self.position_bias = nn.Parameter(torch.empty(num_heads, self.head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.causal:
            nn.init.zeros_(self.content_bias)
            nn.init.zeros_(self.position_bias)

    def mix(self, x: Tensor, mask: Tensor | None, state: State | None) -> Tensor | tuple[Tensor, State]:
        q, k, v = self.project(x)
        q = q / self.head_dim**0.5
        logits = self.summary_proj(x).unflatten(-1, (self.num_heads, self.rank))
        if not self.causal:
            return self.o_proj(zero_padding(self._both_ways(q, k, v, logits, mask), mask).flatten(-2))
        if state is None:
            return self.o_proj(self._causal(q, k, v, logits).flatten(-2))
        counts = None if mask is None else real_tokens(x, mask)
        length = state["length"] + real_tokens(x, mask)
        keys = append_right_aligned(state.get("keys"), torch.cat([k, logits], dim=-1), counts)
        values = append_right_aligned(state.get("values"), v, counts)
        if "keys" in state:
            out = self._continue(q, keys, values, token_positions(x, state["length"]), length)
        else:
            out = self._causal(q, k, v, logits)
        return self.o_proj(out.flatten(-2)), {"length": length, "keys": keys, "values": values}

    def _both_ways(self, q: Tensor, k: Tensor, v: Tensor, logits: Tensor, mask: Tensor | None) -> Tensor:
        """q, k, v [B, T, H, D] and logits [B, T, H, R] -> [B, T, H, D]."""
        k, v = self._normed(self.window_norm, k), self._normed(self.window_norm, v)
        real = torch.ones(q.shape[:2], dtype=torch.bool, device=q.device) if mask is None else mask.bool()
        weights = _softmax(_hidden(logits, real[:, :, None, None]), dim=1)
        far_k, far_v = (self._normed(self.summary_norm, torch.einsum("bthr,bthd->brhd", weights, x)) for x in (k, v))
        side = max(self.window_size // 2, 1)
        near_k, near_v, near_real = (_around(x, self.window_size, side, side) for x in (k, v, real))
        scores = torch.einsum("bnqhd,bnkhd->bnhqk", _segments(q, self.window_size), near_k)
        near = (scores, near_real[:, :, None, None, :], near_v)
        return self._read(near, (self._far_scores(q, far_k), None, far_v), q.shape[1])

    def _causal(self, q: Tensor, k: Tensor, v: Tensor, logits: Tensor) -> Tensor:
        """A sequence from its start. Right padding lies after all real tokens, in chunks that none of them sees."""
        window, length = self.window_size, q.shape[1]
        near_k, near_v = (_around(self._normed(self.window_norm, x), window, window, 0) for x in (k, v))
        steps = torch.arange(length + -length % window, device=q.device)
        distances = steps[:window, None] + window - torch.arange(2 * window, device=q.device)  # [W, 2W]
        # A distance beyond the query's own position points before the sequence.
        visible = _within(distances, window) & (distances <= steps.view(-1, window, 1))
        scores = torch.einsum("bnqhd,bnkhd->bnhqk", _segments(q + self.content_bias, window), near_k)
        by_distance = self._position_scores(q + self.position_bias, self.window_position, window)
        shifted = _segments(by_distance, window).transpose(2, 3)  # [B, N, H, W, W]
        scores = scores + shifted.gather(-1, _bounded(distances, window).expand(*shifted.shape[:-1], -1))
        far_k, far_v = self._compress(k, v, logits)
        far_scores, far_visible = self._chunk_scores(q, far_k, steps[:length])
        return self._read((scores, visible[None, :, None], near_v), (far_scores, far_visible, far_v), length)

    def _continue(self, q: Tensor, keys: Tensor, values: Tensor, positions: Tensor, length: Tensor) -> Tensor:
        """New queries at `positions` [B, T] against the cache of a sequence of `length` [B] tokens, these included."""
        total, new = keys.shape[1], q.shape[1]
        recent = slice(max(total - new - self.window_size + 1, 0), total)
        key_positions = right_aligned_positions(length, total)
        k, logits = keys.split([self.head_dim, self.rank], dim=-1)
        near_k, near_v = (self._normed(self.window_norm, x[:, recent]) for x in (k, values))
        distances = positions[:, :, None] - key_positions[:, None, recent]  # [B, T, L]
        visible = _within(distances, self.window_size) & (key_positions[:, None, recent] >= 0)
        scores = torch.einsum("bqhd,bkhd->bhqk", q + self.content_bias, near_k)
        by_distance = self._position_scores(q + self.position_bias, self.window_position, self.window_size)
        index = _bounded(distances, self.window_size).unsqueeze(1).expand_as(scores)
        scores = scores + by_distance.transpose(1, 2).gather(-1, index)
        # Chunks are counted from the start of the sequence, so the cache is moved to the left for them.
        slots = (torch.arange(total, device=q.device) + (total - length)[:, None]).clamp(max=total - 1)
        left = [x.gather(1, slots[:, :, None, None].expand_as(x)) for x in (k, values, logits)]
        far_k, far_v = self._compress(*left)
        far_scores, far_visible = self._chunk_scores(q, far_k, positions)
        near = (scores.unsqueeze(1), visible[:, None, None], near_v.unsqueeze(1))
        return self._read(near, (far_scores, far_visible, far_v), new)

    def _normed(self, norm: nn.LayerNorm, x: Tensor) -> Tensor:
        """A LayerNorm over all heads of x [B, T, H, D] at once."""
        return self.split_heads(norm(x.flatten(-2)))

    def _compress(self, k: Tensor, v: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The `rank` means of each complete chunk's keys and values, oldest first: [B, N·R, H, D]."""
        complete = k.shape[1] // self.chunk_size * self.chunk_size
        k, v, logits = (x[:, :complete].unflatten(1, (-1, self.chunk_size)) for x in (k, v, logits))
        weights = _softmax(logits, dim=2)
        means = (torch.einsum("bnchr,bnchd->bnrhd", weights, x).flatten(1, 2) for x in (k, v))
        far_k, far_v = (self._normed(self.summary_norm, x) for x in means)
        return far_k, far_v

    def _far_scores(self, q: Tensor, far_k: Tensor) -> Tensor:
        return torch.einsum("bqhd,bmhd->bqhm", q, far_k)

    def _chunk_scores(self, q: Tensor, far_k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of the chunks' means [B, T, H, M] and which are visible to queries at `positions` [T] or [B, T]."""
        count = far_k.shape[1]
        # The newest mean that a query sees, the last one of the chunk before its own, is at distance 0.
        newest = positions // self.chunk_size * self.rank - 1
        distances = newest[..., None] - torch.arange(count, device=q.device)  # [T, M] or [B, T, M]
        by_distance = self._position_scores(q, self.chunk_position, count)
        index = _bounded(distances, count).unsqueeze(-2).expand(*by_distance.shape)
        return self._far_scores(q, far_k) + by_distance.gather(-1, index), (distances >= 0).unsqueeze(-2)

    def _position_scores(self, q: Tensor, projection: nn.Linear, count: int) -> Tensor:
        """What queries [B, T, H, D] think of the distances 0 to count - 1: [B, T, H, count]."""
        steps = torch.arange(count, device=q.device)
        codes = projection(sinusoidal_embedding(steps, self.hidden_size, projection.weight.dtype))
        return torch.einsum("bqhd,mhd->bqhm", q, self.split_heads(codes))

    def _read(
        self,
        near: tuple[Tensor, Tensor, Tensor],
        far: tuple[Tensor, Tensor | None, Tensor],
        length: int,
    ) -> Tensor:
        """One softmax over window and summary, each given as scores, what of them is visible, values.

        near: scores [B, N, H, W, K] of N segments of W queries, values [B, N, K, H, D].
        far: scores [B, T, H, M] of the same queries, values [B, M, H, D].
        """
        near_scores, near_v = _hidden(*near[:2]), near[2]
        far_scores = _segments(_hidden(*far[:2]), near_scores.shape[3]).transpose(2, 3)  # [B, N, H, W, M]
        weights = _softmax(torch.cat([far_scores, near_scores], dim=-1), dim=-1).to(near_v.dtype)
        weights = F.dropout(weights, self.dropout, self.training)
        to_far, to_near = weights.split([far_scores.shape[-1], near_scores.shape[-1]], dim=-1)
        out = torch.einsum("bnhqm,bmhd->bnqhd", to_far, far[2]) + torch.einsum("bnhqk,bnkhd->bnqhd", to_near, near_v)
        return out.flatten(1, 2)[:, :length]


def _within(distances: Tensor, count: int) -> Tensor:
    return (distances >= 0) & (distances < count)


def _bounded(distances: Tensor, count: int) -> Tensor:
    """Distances that index a table of `count` entries; those outside of it, which nobody sees, become 0.

    Not by clamp, which PyTorch's compiler cannot read behind a concatenation (pytorch/pytorch#188225).
    """
    return torch.where(_within(distances, count), distances, 0)


def _hidden(scores: Tensor, visible: Tensor | None) -> Tensor:
    """Scores whose softmax is exactly zero where nothing is visible, and finite in a row without anything visible."""
    return scores if visible is None else torch.where(visible, scores, torch.finfo(scores.dtype).min)


def _softmax(scores: Tensor, dim: int) -> Tensor:
    """Softmax in float32 whatever the dtype of the scores."""
    return scores.to(accumulation_dtype(scores.dtype)).softmax(dim=dim).to(scores.dtype)


def _segments(x: Tensor, size: int) -> Tensor:
    """[B, T, ...] -> [B, N, size, ...], zero-padded to whole segments."""
    padding = (0, 0) * (x.dim() - 2) + (0, -x.shape[1] % size)
    return F.pad(x, padding).unflatten(1, (-1, size))


def _around(x: Tensor, size: int, before: int, after: int) -> Tensor:
    """Each segment of x [B, T, ...] with its neighbours, zero outside of x: [B, N, before + size + after, ...]."""
    padding = (0, 0) * (x.dim() - 2) + (before, -x.shape[1] % size + after)
    windows = F.pad(x, padding).unfold(1, before + size + after, size)  # [B, N, ..., before + size + after]
    return windows.movedim(-1, 2)
