"""DiagAttention: softmax (T2) or ReLU (T1) attention inside blocks of 64, against dilution (paper, section 4.2)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from transnormer.errors import ConfigError, did_you_mean
from transnormer.mixers.components.context import Context
from transnormer.mixers.components.matrix import pair_scores, softmax_over, visible_pairs
from transnormer.mixers.components.packed_row import PackedPiece, PackedRow
from transnormer.mixers.components.packing import take
from transnormer.mixers.components.positions import Rotation, token_positions
from transnormer.mixers.components.state import (
    FixedState,
    append_right_aligned,
    fixed_slots,
    newest,
    right_aligned_positions,
)
from transnormer.mixers.components.xnorm import XNorm
from transnormer.mixers.contract import AttentionMixer, State, Traits, real_tokens
from transnormer.mixers.registry import register
from transnormer.ops import diag_attention, diag_decode_step, rotated_attention
from transnormer.ops.diag_attention import KINDS
from transnormer.ops.diag_attention.step import diag_attention_step
from transnormer.ops.rotated_attention import Attended, dtype_of, unpacked
from transnormer.ops.shapes import check_block_size, check_dropout, zero_padding


@register("diag")
class DiagAttention(AttentionMixer):
    """DiagAttention: softmax(QKᵀ/√D)V Wₒ, or ReLU in place of softmax, inside blocks of tokens (paper, section 4.2).

    A layer for models of your own: `layer(x, mask)` takes x [B, T, hidden_size], of any length T, and returns the same
    shape; projections and norm are in it. `mask` is [B, T], 1 = real token. With `cu_seqlens` [N + 1] the one row x is
    N sequences, packed. A causal layer continues a state, at first `layer.init_state(B)`: `layer(x, mask, state)` is
    the output and the new state.

    - `hidden_size`, `num_heads`: the width, and how many heads divide it.
    - `causal`: whether a token sees only itself and those before it in its block.
    - `max_length` (default 1): of no meaning here, other mixers need it.
    - `kind` (default `"softmax"`, that of T2): `"rela"` is that of T1, XNorm(ReLU(QKᵀ/√D)V).
    - `block_size` (default 64): tokens in a block, at least 2; the last block may be shorter.
    - `xnorm` (default `None`): the norm behind it, none behind softmax and `"rms"` behind `"rela"` unless said
      otherwise; `tn.NormAttention` has the others.
    - `position` (default `"none"`): how Q and K are rotated by their positions, which count from the start of each
      block. T1 and T2 have `"lrpe"`, whose angles are learned; those of `"rope"` are fixed.
    - `dropout` (default 0.0): of attention weights, in training.

    >>> import torch
    >>> layer = tn.DiagAttention(hidden_size=64, num_heads=4, causal=True, position="lrpe")
    >>> layer(torch.randn(2, 100, 64)).shape
    torch.Size([2, 100, 64])
    >>> layer(torch.randn(1, 100, 64), cu_seqlens=torch.tensor([0, 30, 100])).shape  # two sequences, packed
    torch.Size([1, 100, 64])
    """

    traits = Traits(
        summary="softmax or ReLU attention inside non-overlapping blocks",
        paper="Qin et al. 2022, The Devil in Linear Transformer",
        cost="T",
        cache="chunked_attention",
        context_parallel=True,
    )
    qkv_gain = 1.0  # as the authors have it

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        causal: bool,
        max_length: int = 1,
        *,
        kind: str = "softmax",
        block_size: int = 64,
        xnorm: str | None = None,
        position: str = "none",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(hidden_size, num_heads, causal, max_length)
        if kind not in KINDS:
            raise ConfigError(f"diag: unknown kind '{kind}'", did_you_mean(kind, KINDS))
        check_block_size("diag", block_size, least=2)
        check_dropout("diag", dropout)
        self.kind = kind
        self.block_size = block_size
        self.dropout = dropout
        self.rotation = Rotation(position, self.head_dim)
        self.xnorm = XNorm(xnorm or ("rms" if kind == "rela" else "none"), hidden_size, causal)

    @classmethod
    def window(cls, options: dict[str, Any]) -> int:
        return options["block_size"]

    def mix(
        self,
        x: Tensor,
        mask: Tensor | None,
        state: State | None,
        queries_from: Tensor | None = None,
        row: PackedRow | None = None,
    ) -> Tensor | tuple[Tensor, State]:
        """XNorm of the attention inside blocks, Q and K rotated by their positions there, and the output projection."""
        qkv, rotation = self.project_qkv(x, queries_from), self.rotation(x)
        positions = row.positions if row else token_positions(x, state["length"] if state else None)
        if state is not None:  # which keeps keys as they were rotated
            q, k, v = unpacked(qkv)
            q, k = self.rotation.rotate(q, k, positions % self.block_size)
            qkv, rotation = (q, k, v), {}
        if state is not None and "keys" in state:
            attended = Attended(self._continue(q, k, v, positions, mask, state))
        else:
            attended = rotated_attention(
                qkv,
                positions % self.block_size,
                **rotation,
                kind=self.kind,
                causal=self.causal,
                block_size=self.block_size,
                mask=mask,
                cu_seqlens=row,
                dropout_p=self.dropout if self.training else 0.0,
                return_square_sums=self.xnorm.folds_into(self.o_proj, dtype_of(qkv)),
            )
        y = self.xnorm.projected(self.o_proj, attended.out, attended.square_sums, dtype=dtype_of(qkv), mask=mask)
        return y if state is None else (y, self._remember(k, v, mask, state))

    def mix_packed(self, x: Tensor, row: PackedRow) -> Tensor:
        mixed = self.mix(x, None, None, row=row)
        assert isinstance(mixed, Tensor)
        return mixed

    def mix_piece(self, x: Tensor, mask: Tensor | None, context: Context, row: PackedRow | None = None) -> Tensor:
        """As `mix`: a token sees nothing outside its block, and a piece is whole blocks."""
        if row is not None:
            assert isinstance(row, PackedPiece)
            for piece, carried in enumerate(row.carried):  # all pieces, so that all processes raise, or none
                if carried % self.block_size:
                    raise ConfigError(
                        f"diag: piece {piece + 1} of {context.size} begins {carried} tokens into a sequence, inside a "
                        f"block of {self.block_size}",
                        "let a sequence that goes on in the next piece have whole blocks before it",
                    )
            return self.mix_packed(x, row)
        if x.shape[1] % self.block_size:
            raise ConfigError(
                f"diag: a piece of {x.shape[1]} tokens is not a whole number of blocks of {self.block_size}"
            )
        mixed = self.mix(x, mask, None)
        assert isinstance(mixed, Tensor)
        return mixed

    def _continue(
        self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, mask: Tensor | None, state: State
    ) -> Tensor:
        """New tokens behind a cache: a few as a decode step, more than a block as a sequence that begins with a block.

        Either way the cost is linear in their number.
        """
        keys, values = torch.cat([state["keys"], k], dim=1), torch.cat([state["values"], v], dim=1)
        cached, new = state["keys"].shape[1], q.shape[1]
        if new <= self.block_size:
            key_positions = torch.cat([right_aligned_positions(state["length"], cached), positions], dim=1)
            out = diag_attention_step(
                q,
                keys,
                values,
                query_positions=positions,
                key_positions=key_positions,
                block_size=self.block_size,
                kind=self.kind,
            )
            return zero_padding(out, mask)
        # Each row is shifted so that the block of its first new token begins at 0, the cached part of it included.
        begun = (state["length"] % self.block_size)[:, None]
        slots = torch.arange(self.block_size - 1 + new, device=q.device)
        is_real = torch.ones(q.shape[:2], dtype=torch.bool, device=q.device) if mask is None else mask.bool()
        seen = (slots < begun) | ((slots < begun + new) & take(is_real, (slots - begun).clamp(0, new - 1)))
        shifted = (cached - begun + slots).clamp(max=cached + new - 1)
        found = diag_attention(
            take(q, (slots - begun).clamp(0, new - 1)),
            take(keys, shifted),
            take(values, shifted),
            causal=True,
            block_size=self.block_size,
            kind=self.kind,
            mask=seen,
        )
        assert isinstance(found, Tensor)
        return zero_padding(take(found, begun + slots[:new]), mask)

    def _remember(self, k: Tensor, v: Tensor, mask: Tensor | None, state: State) -> State:
        """Keep the last block_size - 1 real tokens: all that the next token's block can hold."""
        counts = None if mask is None else real_tokens(k, mask)
        keep = self.block_size - 1
        return {
            "length": state["length"] + real_tokens(k, mask),
            "keys": newest(append_right_aligned(state.get("keys"), k, counts), keep),
            "values": newest(append_right_aligned(state.get("values"), v, counts), keep),
        }

    def matrix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Block-diagonal; the weights of ReLA have no row sum, which its XNorm makes up for."""
        q, k, _ = self.project(x)
        q, k = self.rotation.rotate(q, k, token_positions(x, None) % self.block_size)
        scores = pair_scores(q, k) * self.head_dim**-0.5
        visible = visible_pairs(x, mask, causal=self.causal, block_size=self.block_size)
        return scores.relu().masked_fill(~visible, 0) if self.kind == "rela" else softmax_over(scores, visible)

    def fixed_state(self, length: Tensor, capacity: int, dtype: torch.dtype) -> FixedState:
        return fixed_slots(length, self.block_size, self.num_heads, self.head_dim, dtype)

    def step(self, x: Tensor, state: FixedState) -> Tensor:
        q, k, v = self.project(x)
        out = diag_decode_step(
            q,
            k,
            v,
            state["keys"],
            state["values"],
            positions=state["length"],
            kind=self.kind,
            **self.rotation(x),
        )
        return self.xnorm.projected(self.o_proj, out, dtype=v.dtype)
