"""What every mixer is: a module that mixes tokens, `mixer(x, mask=None, state=None)`, and truthful traits.

Padding: real tokens are moved to the front before a mixer sees them, so a mixer that honours right padding
honours any padding, and positions count real tokens only.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transnormer.errors import ConfigError
from transnormer.mixers.components.context import Context
from transnormer.mixers.components.linear import XavierLinear, should_pack, should_share_a_kernel
from transnormer.mixers.components.packed_row import PackedRow, packed_row
from transnormer.mixers.components.packing import Packing
from transnormer.mixers.components.state import FixedState, State
from transnormer.ops import linears
from transnormer.ops.packed import PackedBounds
from transnormer.ops.rotated_attention import QKV, unpacked
from transnormer.ops.shapes import check_mask, check_tensors


@dataclass(frozen=True)
class Traits:
    """What a method can do and costs; shown by `transnormer list mixers` and enforced when a mixer is built."""

    summary: str
    paper: str
    cost: str  # time in the length T, e.g. "T", "T log T", "T^2"
    bidirectional: bool = True
    needs_ffn: bool = True  # False where the method replaces the feed-forward layer too
    cache: str | None = None  # transformers' cache layer type that can hold its state; None: it has no causal form
    context_parallel: bool = False  # several processes can share a sequence
    no_matrix: str | None = None  # why there is no matrix of weights [T, T] to look at; None: there is one

    @property
    def causal(self) -> bool:
        """Whether it has a causal form, which then decodes too."""
        return self.cache is not None

    @property
    def recurrent(self) -> bool:
        """Whether it decodes with a state of constant size."""
        return self.causal and self.cache != "full_attention"


class Mixer(nn.Module):
    """Base of all mixers. Subclasses set `name` and `traits` and write `mix`; options are keyword-only arguments."""

    name: ClassVar[str]
    traits: ClassVar[Traits]

    def __init__(self, hidden_size: int, num_heads: int, causal: bool, max_length: int) -> None:
        super().__init__()
        for argument, value in (("hidden_size", hidden_size), ("num_heads", num_heads), ("max_length", max_length)):
            if value < 1:
                raise ConfigError(f"{self.name}: {argument} must be at least 1, got {value}")
        if hidden_size % num_heads:
            raise ConfigError(
                f"{self.name}: hidden_size {hidden_size} is not a multiple of num_heads {num_heads}",
                "choose a number of heads that divides the width",
            )
        if causal and not self.traits.causal:
            raise ConfigError(f"{self.name} has no causal form", "see `transnormer list mixers` for those that have")
        if not causal and not self.traits.bidirectional:
            raise ConfigError(f"{self.name} is causal only", "see `transnormer list mixers` for bidirectional ones")
        self.hidden_size = hidden_size
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.causal = causal
        self.max_length = max_length

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        state: State | None = None,
        *,
        packed: bool = False,
        context: Context | None = None,
        cu_seqlens: Tensor | PackedBounds | None = None,
    ) -> Tensor | tuple[Tensor, State]:
        """Mix x [B, T, hidden_size]; with a `state` also return the state after these tokens.

        `mask` [B, T], 1 = real token, padding anywhere. `packed` promises that padding is on the right already, and
        finite.
        With a `FixedState` x is one token of each row, and the state that is returned is the one that was given.
        With a `context` x is a piece of sequences that several processes share, their padding on the right.
        With `cu_seqlens` [N + 1], or their bounds, x is one row of N sequences, packed, none of which sees another.
        """
        self._check_input(x, mask)
        if cu_seqlens is not None:
            row = cu_seqlens
            if not isinstance(row, PackedRow):
                row = packed_row(self.name, row, x, mask, context)
            if state is not None:
                raise ConfigError(
                    f"{self.name}: packed sequences carry no state", "call each sequence with its own state"
                )
            return self.mix_packed(x, row) if context is None else self.mix_piece(x, None, context, row)
        if context is not None:
            return self.mix_piece(x, mask, context)
        if isinstance(state, FixedState):
            return self.step(x, state), state
        if state is not None and not self.causal:
            raise ConfigError(f"{self.name} cannot carry a state: it has no causal step")
        if mask is None or packed:
            return self.mix(x, mask, state)
        packing = Packing(mask)
        # What is no number in padding would stay out of the attention, but not out of the gradient of the projections.
        x = x.masked_fill(~x.isfinite() & ~mask.bool()[..., None], 0)
        mixed = self.mix(packing.pack(x), packing.mask, state)
        if isinstance(mixed, tuple):
            return packing.unpack(mixed[0]), mixed[1]
        return packing.unpack(mixed)

    @abstractmethod
    def mix(self, x: Tensor, mask: Tensor | None, state: State | None) -> Tensor | tuple[Tensor, State]:
        """The method itself, on right-padded input. Returns (y, new state) exactly when a state is given."""

    def mix_packed(self, x: Tensor, row: PackedRow) -> Tensor:
        """The method on the sequences of a row x [1, T, hidden_size]: here as right-padded rows of a batch."""
        rows, mask = row.padded(x)
        mixed = self.mix(rows, mask, None)
        assert isinstance(mixed, Tensor)
        return row.flat(mixed)

    def mix_piece(self, x: Tensor, mask: Tensor | None, context: Context, row: PackedRow | None = None) -> Tensor:
        """The method on this process's piece x [B, T, hidden_size]; all pieces together are `mix` of the whole.

        With `row` they are `mix_packed`.
        """
        raise ConfigError(f"{self.name}: several processes cannot share a sequence", "use train.context_parallel=1")

    def attention_matrix(self, x: Tensor, mask: Tensor | None = None, *, packed: bool = False) -> Tensor:
        """The weights [B, H, T, T] with which each token (row) of x takes the values of all tokens (columns).

        Those of evaluation, without dropout, and before any norm or projection behind the attention. Padding has none.
        """
        self._check_input(x, mask)
        if self.traits.no_matrix:
            raise ConfigError(
                f"{self.name} has no attention matrix: {self.traits.no_matrix}",
                "see `transnormer list mixers` for methods that have one",
            )
        if mask is None or packed:
            return self.matrix(x, mask)
        packing = Packing(mask)
        return packing.unpack_pairs(self.matrix(packing.pack(x), packing.mask))

    def matrix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """`attention_matrix` of right-padded input; a method without one says why in its traits instead."""
        raise NotImplementedError(f"{self.name}: write `matrix`, or say in its traits why there is no_matrix")

    @classmethod
    def window(cls, options: dict[str, Any]) -> int | None:
        """Given all options, the number of tokens within which a state keeps keys; None: no keys, or all of them."""
        return None

    def init_state(self, batch_size: int, device: torch.device | str | None = None) -> State:
        """The state before the first token; the other entries appear with the first call."""
        return {"length": torch.zeros(batch_size, dtype=torch.long, device=device)}

    def fixed_state(self, length: Tensor, capacity: int, dtype: torch.dtype) -> FixedState:
        """The state before the first token, for `step`; `length` [B] is shared by all layers.

        `capacity` is the number of tokens that a state which grows with the sequence must hold.
        """
        raise ConfigError(f"{self.name} cannot decode on a state of fixed shape")

    def step(self, x: Tensor, state: FixedState) -> Tensor:
        """Mix one token x [B, 1, hidden_size] and take it into `state`, in place; only its owner counts `length`.

        Nothing here may wait for the device or make a tensor whose shape or address depends on the sequence.
        """
        raise ConfigError(f"{self.name} cannot decode on a state of fixed shape")

    def reset_parameters(self) -> None:
        """Initialise the parameters that this module holds itself; projections initialise themselves."""

    def _check_input(self, x: Tensor, mask: Tensor | None) -> None:
        check_tensors(self.name, x=x)
        if x.dim() != 3 or x.shape[1] < 1 or x.shape[2] != self.hidden_size:
            raise ConfigError(
                f"{self.name}: x must be [B, T, {self.hidden_size}] with T ≥ 1, got {list(x.shape)}",
                "the width is the mixer's hidden_size; one sequence is a batch of one: x[None]",
            )
        if mask is not None:
            check_mask(self.name, mask, x)

    def split_heads(self, x: Tensor) -> Tensor:
        """[B, T, hidden_size] -> [B, T, H, D]."""
        return x.unflatten(-1, (self.num_heads, self.head_dim))


class ProjectedMixer(Mixer):
    """A mixer with the four usual projections, all with bias."""

    qkv_gain: ClassVar[float] = 2**-0.5  # of Xavier's initialisation, as in fairseq's attention

    def __init__(self, hidden_size: int, num_heads: int, causal: bool, max_length: int) -> None:
        super().__init__(hidden_size, num_heads, causal, max_length)
        self.q_proj = XavierLinear(hidden_size, hidden_size, gain=self.qkv_gain)
        self.k_proj = XavierLinear(hidden_size, hidden_size, gain=self.qkv_gain)
        self.v_proj = XavierLinear(hidden_size, hidden_size, gain=self.qkv_gain)
        self.o_proj = XavierLinear(hidden_size, hidden_size, zero_bias=True)

    def project(self, x: Tensor, queries_from: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each [B, T, H, D]; the queries may be those of another input."""
        return unpacked(self.project_qkv(x, queries_from))

    def project_qkv(self, x: Tensor, queries_from: Tensor | None = None) -> QKV:
        """The same, packed where one matrix product makes all three."""
        layers = (self.q_proj, self.k_proj, self.v_proj)
        if queries_from is None and should_pack(x, *layers):
            return self.project_packed(x)
        if queries_from is None and should_share_a_kernel(x, *layers):
            q, k, v = linears(x, [layer.weight for layer in layers], [layer.bias for layer in layers])
        else:
            q, k, v = self.q_proj(x if queries_from is None else queries_from), self.k_proj(x), self.v_proj(x)
        return self.split_heads(q), self.split_heads(k), self.split_heads(v)

    def project_packed(self, x: Tensor) -> Tensor:
        """Queries, keys and values as one tensor [B, T, 3, H, D], in one matrix product, which reads x once."""
        layers = (self.q_proj, self.k_proj, self.v_proj)
        weight, bias = torch.cat([layer.weight for layer in layers]), torch.cat([layer.bias for layer in layers])
        return F.linear(x, weight, bias).unflatten(-1, (3, self.num_heads, self.head_dim))


class AttentionMixer(ProjectedMixer):
    """A projected mixer that sees its input only as queries, keys and values, so that they may come from two inputs.

    Subclasses write `attend`, or `mix` where they pass packed queries, keys and values on.
    """

    def mix(
        self, x: Tensor, mask: Tensor | None, state: State | None, queries_from: Tensor | None = None
    ) -> Tensor | tuple[Tensor, State]:
        """As that of every mixer; the queries may be those of another input [B, T, width]."""
        q, k, v = self.project(x, queries_from)
        return self.attend(q, k, v, mask, state)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, state: State | None
    ) -> Tensor | tuple[Tensor, State]:
        """The method on q, k, v [B, T, H, D], output projection included; otherwise as `mix`."""
        raise NotImplementedError


def real_tokens(x: Tensor, mask: Tensor | None) -> Tensor:
    """How many of the T tokens of each row are real: [B]."""
    if mask is None:
        return torch.full((x.shape[0],), x.shape[1], dtype=torch.long, device=x.device)
    return mask.long().sum(dim=1)
