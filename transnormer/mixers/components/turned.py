"""What the two attentions of the paper share: queries and keys turned by their positions, and a norm of the output."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor

from transnormer.mixers.components.fixed_state import FixedState
from transnormer.mixers.components.linear import should_join
from transnormer.mixers.components.positions import Rotation, token_positions
from transnormer.mixers.components.xnorm import XNorm
from transnormer.mixers.contract import AttentionMixer, State
from transnormer.ops import rotated_attention


class TurnedAttention(AttentionMixer):
    """On tensor cores projection, rotation and attention pass one joined tensor on, and its gradient."""

    rotation: Rotation
    xnorm: XNorm

    def mix(self, x: Tensor, mask: Tensor | None, state: State | None) -> Tensor | tuple[Tensor, State]:
        if state is not None or not self.joins(x):
            return super().mix(x, mask, state)
        rates, reflection = self.rotation.rates_and_reflection(x.device)
        qkv = self.project_jointly(x)
        folded = self.xnorm.folds_into(self.o_proj, qkv.dtype)
        out = rotated_attention(
            qkv,
            rates=rates,
            reflection=reflection,
            causal=self.causal,
            mask=mask,
            return_square_sums=folded,
            **self.joined_options(token_positions(x, None)),
        )
        return self.xnorm.projected(self.o_proj, *(out if isinstance(out, tuple) else (out,)), mask=mask)

    def joins(self, x: Tensor) -> bool:
        """Whether `rotated_attention` pays: the backward need not copy gradients, inference not write what it turns."""
        return self.rotation.kind != "none" and should_join(x, self.q_proj, self.k_proj, self.v_proj)

    def step_options(self, state: FixedState) -> dict[str, Any]:
        """What both decode steps are told about a token behind this state."""
        positions = state["length"]
        turned = self.rotation.kind != "none"
        rates, reflection = self.rotation.rates_and_reflection(positions.device) if turned else (None, None)
        return {"positions": positions, "rates": rates, "reflection": reflection}

    @abstractmethod
    def joined_options(self, positions: Tensor) -> dict[str, Any]:
        """What `rotated_attention` is told about this attention, of tokens at these positions."""
