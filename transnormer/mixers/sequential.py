"""Two attentions one after the other in one layer: the second asks with the first's output (paper, section 5.4)."""

from __future__ import annotations

from torch import Tensor

from transnormer.mixers.components.pair import Pair, state_of, with_state
from transnormer.mixers.contract import State, Traits
from transnormer.mixers.registry import register


@register("sequential")
class SequentialAttention(Pair):
    """The queries of `second` come from the output of `first`, its keys and values from x, as in the authors' code.

    diag then norm is the paper's D→N; N→D is first: norm, second: diag. `first_options`, `second_options` are theirs
    alone.
    """

    traits = Traits(
        summary="two attentions in sequence, diag then norm by default",
        paper="Qin et al. 2022, The Devil in Linear Transformer",
        cost="T",
        cache="hybrid_sliding",
        no_matrix="its two attentions have one each, and the second reads the first",
    )

    def mix(self, x: Tensor, mask: Tensor | None, state: State | None) -> Tensor | tuple[Tensor, State]:
        asked, first_state = with_state(self.first.mix(x, mask, state_of(self.first, state)))
        mixed = self.second.mix(x, mask, state_of(self.second, state), queries_from=asked)
        y, second_state = with_state(mixed)
        return y if state is None else (y, {**first_state, **second_state})
