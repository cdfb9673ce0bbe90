"""Two attentions side by side in one layer: the mean of their outputs, or their concatenation (paper, section 5.4)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from transnormer.errors import ConfigError, did_you_mean
from transnormer.mixers.components.pair import Pair, state_of, with_state
from transnormer.mixers.contract import State, Traits
from transnormer.mixers.registry import register

COMBINATIONS = ("mean", "concat")


@register("parallel")
class ParallelAttention(Pair):
    """`first` and `second` name the attentions, `first_options` and `second_options` are theirs alone.

    The paper says that outputs are concatenated, the authors' code takes their mean: `combine` is "mean" or "concat".
    Concatenating two half-width outputs before one output projection is the sum of two half-width projections.
    """

    traits = Traits(
        summary="two attentions side by side, diag and norm by default",
        paper="Qin et al. 2022, The Devil in Linear Transformer",
        cost="T",
        cache="hybrid_sliding",
        no_matrix="its two attentions have one each",
    )

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        causal: bool,
        max_length: int,
        *,
        first: str = "diag",
        second: str = "norm",
        first_options: dict[str, Any] | None = None,
        second_options: dict[str, Any] | None = None,
        combine: str = "mean",
        position: str = "none",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(
            hidden_size,
            num_heads,
            causal,
            max_length,
            first=first,
            second=second,
            first_options=first_options,
            second_options=second_options,
            position=position,
            dropout=dropout,
        )
        if combine not in COMBINATIONS:
            raise ConfigError(f"parallel: unknown combine '{combine}'", did_you_mean(combine, COMBINATIONS))
        self.combine = combine

    def mix(self, x: Tensor, mask: Tensor | None, state: State | None) -> Tensor | tuple[Tensor, State]:
        first, first_state = with_state(self.first.mix(x, mask, state_of(self.first, state)))
        second, second_state = with_state(self.second.mix(x, mask, state_of(self.second, state)))
        y = first + second
        if self.combine == "mean":
            y = y / 2
        return y if state is None else (y, {**first_state, **second_state})
