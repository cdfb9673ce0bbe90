"""FLASH: the gated attention unit with squared-ReLU attention inside chunks and linear attention between them.

Mixed chunk attention (Hua et al. 2022, section 4): relu(QKᵀ/C + b)²V inside a chunk of C tokens, and Q'Σ(K'ᵀV)/C over
the chunks, all of them when bidirectional, those strictly before when causal. Linear time; a state of constant size.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transnormer.errors import ConfigError
from transnormer.mixers.components.gated_unit import GatedUnit, squared_relu
from transnormer.mixers.components.matrix import visible_pairs
from transnormer.mixers.components.positions import token_positions
from transnormer.mixers.components.state import append_right_aligned, newest, right_aligned_positions
from transnormer.mixers.contract import State, Traits, real_tokens
from transnormer.mixers.registry import register
from transnormer.ops.shapes import accumulation_dtype


@register("flash")
class Flash(GatedUnit):
    """`chunk_size` is C: 256 in the paper, 64 in the runs it is compared in. For the rest see `flash_quad`.

    The linear part has no denominator either: bidirectional, it grows with the number of chunks.
    """

    traits = Traits(
        summary="gated attention unit, squared-ReLU inside chunks, linear between",
        paper="Hua et al. 2022, Transformer Quality in Linear Time",
        cost="T",
        needs_ffn=False,
        cache="hybrid_sliding",
    )

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        causal: bool,
        max_length: int,
        *,
        chunk_size: int = 64,
        expansion: int = 2,
        query_key_size: int = 128,
        position: str = "rope",
    ) -> None:
        super().__init__(
            hidden_size,
            num_heads,
            causal,
            max_length,
            num_pairs=2,  # one for the chunks, one for the linear part
            expansion=expansion,
            query_key_size=query_key_size,
            position=position,
        )
        if chunk_size < 2:
            raise ConfigError(f"flash: chunk_size must be at least 2, got {chunk_size}")
        self.chunk_size = chunk_size

    @classmethod
    def window(cls, options: dict[str, Any]) -> int:
        return options["chunk_size"]

    def mix(self, x: Tensor, mask: Tensor | None, state: State | None) -> Tensor | tuple[Tensor, State]:
        positions = token_positions(x, state["length"] if state else None)
        q, k = self.queries_keys(x, positions)
        v = self.values(x, mask)
        if state is None:
            return self.gated(x, self._attend(q, k, v))
        if "keys" not in state:
            return self.gated(x, self._attend(q, k, v)), self._remember(k, v, mask, state)
        pieces = []
        for start in range(0, x.shape[1], self.chunk_size):
            piece = slice(start, start + self.chunk_size)
            pieces.append(self._continue(q[:, piece], k[:, piece], v[:, piece], positions[:, piece], state))
            state = self._remember(k[:, piece], v[:, piece], None if mask is None else mask[:, piece], state)
        return self.gated(x, torch.cat(pieces, dim=1)), state

    def matrix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """relu(QKᵀ/C + b)² inside chunks plus Q'K'ᵀ/C, causal between them, bidirectional everywhere; one head."""
        q, k = self.queries_keys(x, token_positions(x, None))
        chunk = token_positions(x, None) // self.chunk_size
        near_scores, far_scores = (q[:, :, i] @ k[:, :, i].mT for i in range(2))
        near = squared_relu(near_scores, self.chunk_size, self.bias.pairwise(x.shape[1], x.device))
        near = near.masked_fill(chunk[:, None] != chunk, 0)
        far = far_scores / self.chunk_size
        if self.causal:
            far = far.masked_fill(chunk[:, None] <= chunk, 0)
        return (near + far)[:, None].masked_fill(~visible_pairs(x, mask, causal=self.causal), 0)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """A sequence from its start: q, k [B, T, 2, S] and v [B, T, E] -> [B, T, E]."""
        length, chunk = q.shape[1], min(self.chunk_size, q.shape[1])
        near_q, far_q, near_k, far_k, v = (_in_chunks(x, chunk) for x in (*q.unbind(2), *k.unbind(2), v))
        weights = squared_relu(near_q @ near_k.mT, self.chunk_size, self.bias.pairwise(chunk, q.device))
        dtype = accumulation_dtype(v.dtype)
        if self.causal:
            weights = weights.tril()
            sums = (far_k[:, :-1].mT @ v[:, :-1]).to(dtype).cumsum(dim=1)  # [B, N - 1, S, E]
            memory = F.pad(sums, (0, 0, 0, 0, 1, 0))
        else:
            memory = (far_k.flatten(1, 2).mT @ v.flatten(1, 2)).to(dtype).unsqueeze(1)
        out = weights.to(v.dtype) @ v + far_q @ (memory / self.chunk_size).to(v.dtype)
        return out.flatten(1, 2)[:, :length]

    def _continue(self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, state: State) -> Tensor:
        """At most a chunk of new tokens behind a state: [B, T, E]."""
        keys, values = torch.cat([state["keys"], k], dim=1), torch.cat([state["values"].squeeze(2), v], dim=1)
        key_positions = torch.cat([right_aligned_positions(state["length"], state["keys"].shape[1]), positions], dim=1)
        distances = positions[:, :, None] - key_positions[:, None, :]  # [B, T, L + T]
        chunks_apart = positions[:, :, None] // self.chunk_size - key_positions[:, None, :] // self.chunk_size
        near_scores, far_scores = ((q[:, :, i] @ keys[:, :, i].mT) for i in range(2))
        near = squared_relu(near_scores, self.chunk_size, self.bias.behind(distances, self.chunk_size))
        weights = torch.where((chunks_apart == 0) & (distances >= 0), near, 0)
        # Chunks that were complete before these tokens are in the memory already.
        unfolded = key_positions >= self._chunk_start(state["length"])[:, None]
        weights = torch.where((chunks_apart > 0) & unfolded[:, None, :], far_scores / self.chunk_size, weights)
        return weights.to(v.dtype) @ values + q[:, :, 1] @ state["memory"].to(v.dtype)

    def _remember(self, k: Tensor, v: Tensor, mask: Tensor | None, state: State) -> State:
        """Fold the chunks that these tokens complete into the memory; keep the last chunk_size - 1 tokens."""
        counts = None if mask is None else real_tokens(k, mask)
        length = state["length"] + real_tokens(k, mask)
        keys = append_right_aligned(state.get("keys"), k, counts)
        values = append_right_aligned(state.get("values"), v.unsqueeze(2), counts)
        positions = right_aligned_positions(length, keys.shape[1])
        first, end = (self._chunk_start(n)[:, None] for n in (state["length"], length))
        completed = ((positions >= first) & (positions < end))[..., None]
        dtype = accumulation_dtype(v.dtype)
        far_k = torch.where(completed, keys[:, :, 1], 0).to(dtype)
        memory = far_k.mT @ values.squeeze(2).to(dtype) / self.chunk_size
        if "memory" in state:
            memory = memory + state["memory"]
        keep = self.chunk_size - 1
        return {"length": length, "memory": memory, "keys": newest(keys, keep), "values": newest(values, keep)}

    def _chunk_start(self, length: Tensor) -> Tensor:
        """Where the chunk of the token at position `length` begins."""
        return length // self.chunk_size * self.chunk_size


def _in_chunks(x: Tensor, chunk: int) -> Tensor:
    """[B, T, D] -> [B, N, C, D], zero-padded to whole chunks (a zero value adds nothing)."""
    return F.pad(x, (0, 0, 0, -x.shape[1] % chunk)).unflatten(1, (-1, chunk))
