"""NormAttention: XNorm(φ(Q)(φ(K)ᵀV)), linear attention whose gradient is bounded (paper, section 4.1)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from transnormer.mixers.components.context import Context
from transnormer.mixers.components.matrix import pair_scores, visible_pairs
from transnormer.mixers.components.packed_row import PackedPiece, PackedRow
from transnormer.mixers.components.positions import Rotation, token_positions
from transnormer.mixers.components.state import FixedState, fixed_memory
from transnormer.mixers.components.xnorm import XNorm
from transnormer.mixers.contract import AttentionMixer, State, Traits, real_tokens
from transnormer.mixers.registry import register
from transnormer.ops import norm_attention, norm_decode_step, rotated_attention
from transnormer.ops.autocast import in_range_of_sums
from transnormer.ops.feature_maps import feature_map_named
from transnormer.ops.norm_attention.chunked import key_value_sums
from transnormer.ops.rotated_attention import dtype_of
from transnormer.ops.shapes import zero_padding


@register("norm")
class NormAttention(AttentionMixer):
    """NormAttention: XNorm(φ(Q)(φ(K)ᵀV))Wₒ, linear attention with a norm for a denominator (paper, section 4.1).

    A layer for models of your own: `layer(x, mask)` takes x [B, T, hidden_size], of any length T, and returns the same
    shape; projections and norm are in it. `mask` is [B, T], 1 = real token. With `cu_seqlens` [N + 1] the one row x is
    N sequences, packed. A causal layer continues a state, at first `layer.init_state(B)`: `layer(x, mask, state)` is
    the output and the new state.

    - `hidden_size`, `num_heads`: the width, and how many heads divide it.
    - `causal`: whether a token sees only itself and those before it.
    - `max_length` (default 1): of no meaning here, other mixers need it.
    - `feature_map` (default `"1+elu"`, that of T2): φ; `"elu"` is that of T1, `"identity"` none.
    - `xnorm` (default `"rms"`): the norm over all heads, without parameters; `"rms_gain"` has a learned gain, `"layer"`
      is LayerNorm, `"batch"` BatchNorm (not causal), `"head_rms"` is over each head, `"none"` is no norm.
    - `position` (default `"none"`): how φ(Q) and φ(K) are rotated by their positions. Without a rotation only causality
      tells where a token stands. T1 and T2 have `"lrpe"`, whose angles are learned; those of `"rope"` are fixed.

    The feature map comes before the rotation: a rotated feature may be negative, which only XNorm forgives.

    >>> import torch
    >>> layer = tn.NormAttention(hidden_size=64, num_heads=4, causal=True, position="lrpe")
    >>> layer(torch.randn(2, 100, 64)).shape
    torch.Size([2, 100, 64])
    >>> layer(torch.randn(1, 100, 64), cu_seqlens=torch.tensor([0, 30, 100])).shape  # two sequences, packed
    torch.Size([1, 100, 64])
    """

    traits = Traits(
        summary="linear attention without denominator, normalised output",
        paper="Qin et al. 2022, The Devil in Linear Transformer",
        cost="T",
        cache="linear_attention",
        context_parallel=True,
    )

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        causal: bool,
        max_length: int = 1,
        *,
        feature_map: str = "1+elu",
        xnorm: str = "rms",
        position: str = "none",
    ) -> None:
        super().__init__(hidden_size, num_heads, causal, max_length)
        feature_map_named(feature_map)  # an unknown one is an error when the mixer is built
        self.feature_map = feature_map
        self.rotation = Rotation(position, self.head_dim)
        self.xnorm = XNorm(xnorm, hidden_size, causal)

    def mix(
        self,
        x: Tensor,
        mask: Tensor | None,
        state: State | None,
        queries_from: Tensor | None = None,
        row: PackedRow | None = None,
    ) -> Tensor | tuple[Tensor, State]:
        """XNorm(φ(Q)(φ(K)ᵀV)) and the output projection, φ(Q) and φ(K) rotated by their positions."""
        qkv = self.project_qkv(x, queries_from)
        out, memory, square_sums = rotated_attention(
            qkv,
            row.positions if row else token_positions(x, state["length"] if state else None),
            **self.rotation(x),
            kind="norm",
            causal=self.causal,
            feature_map=self.feature_map,
            mask=mask,
            cu_seqlens=row,
            state=state.get("memory") if state else None,
            return_state=state is not None,
            return_square_sums=self.xnorm.folds_into(self.o_proj, dtype_of(qkv)),
        )
        y = self.xnorm.projected(self.o_proj, out, square_sums, dtype=dtype_of(qkv), mask=mask)
        if state is None or memory is None:
            return y
        return y, {"length": state["length"] + real_tokens(x, mask), "memory": memory}

    def mix_packed(self, x: Tensor, row: PackedRow) -> Tensor:
        mixed = self.mix(x, None, None, row=row)
        assert isinstance(mixed, Tensor)
        return mixed

    def mix_piece(self, x: Tensor, mask: Tensor | None, context: Context, row: PackedRow | None = None) -> Tensor:
        """As `mix`, with the φ(K)ᵀV of the pieces that this one sees as its state."""
        projected = self.project(x)
        q, k, v = (in_range_of_sums(part) for part in projected)
        positions = row.positions if row else context.first_position(x) + token_positions(x, None)
        q, k = self.rotation.rotate(q, k, positions, self.feature_map)
        if row is None:
            memory = key_value_sums(zero_padding(k, mask), zero_padding(v, mask))
            state = context.sum_of_others(memory, causal=self.causal)
        else:
            state = self._states_of_sequences(k, v, context, row)
        out = norm_attention(
            q,
            k,
            v,
            causal=self.causal,
            feature_map="identity",
            mask=mask,
            cu_seqlens=row,
            state=state,
        )
        assert isinstance(out, Tensor)
        return self.xnorm.projected(self.o_proj, out, dtype=dtype_of(projected), mask=mask)

    def _states_of_sequences(self, k: Tensor, v: Tensor, context: Context, row: PackedRow) -> Tensor:
        """φ(K)ᵀV of what each sequence of this piece has, and sees, in other pieces: [N, H, D, D].

        Only the first has tokens in earlier ones, and only the last in later ones.
        """
        assert isinstance(row, PackedPiece)
        others = len(row.cu_seqlens) - 2
        tail = key_value_sums(k[:, row.last_start :], v[:, row.last_start :])
        states = F.pad(context.sum_of(tail, row.before), (0, 0) * 3 + (0, others))
        if self.causal:
            return states
        head = key_value_sums(k[:, : row.first_end], v[:, : row.first_end])
        return states + F.pad(context.sum_of(head, row.behind), (0, 0) * 3 + (others, 0))

    def matrix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """φ(Q)φ(K)ᵀ, rotated: signed, and without a denominator, in whose place XNorm stands."""
        q, k, _ = self.project(x)
        q, k = self.rotation.rotate(q, k, token_positions(x, None), self.feature_map)
        return pair_scores(q, k).masked_fill(~visible_pairs(x, mask, causal=self.causal), 0)

    def fixed_state(self, length: Tensor, capacity: int, dtype: torch.dtype) -> FixedState:
        return fixed_memory(length, self.num_heads, (self.head_dim, self.head_dim), dtype)

    def step(self, x: Tensor, state: FixedState) -> Tensor:
        q, k, v = self.project(x)
        out = norm_decode_step(
            q,
            k,
            v,
            state["memory"],
            positions=state["length"],
            feature_map=self.feature_map,
            **self.rotation(x),
        )
        return self.xnorm.projected(self.o_proj, out, dtype=v.dtype)
