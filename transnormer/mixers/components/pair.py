"""Two attentions in one layer (paper, section 5.4: DiagAttention and NormAttention combined inside a layer).

Each works in half the width of the model, as in the authors' ablation: the pair has the parameters of one attention.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from transnormer.errors import ConfigError
from transnormer.mixers.contract import AttentionMixer, Mixer, State, XavierLinear
from transnormer.mixers.registry import build_mixer, mixer_class, mixer_options

# One keeps a recurrent state, the other a bounded number of keys: together they fill one cache layer.
_DECODABLE = {"linear_attention", "chunked_attention"}


class Pair(Mixer):
    """Builds both attentions and carries both states; subclasses say how they are combined.

    Traits are those of the default pair. Any two attentions work bidirectionally; a causal pair must decode as the
    traits promise, so it needs one attention with a recurrent state and one with bounded keys.
    """

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
        position: str = "none",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(hidden_size, num_heads, causal, max_length)
        if hidden_size % (2 * num_heads):
            raise ConfigError(
                f"{self.name}: half of hidden_size {hidden_size}, each attention's share, has no {num_heads} heads",
                "choose a width that is a multiple of twice the number of heads",
            )
        if causal and {mixer_class(name).traits.cache for name in (first, second)} != _DECODABLE:
            raise ConfigError(
                f"{self.name}: '{first}' and '{second}' cannot decode together",
                "a causal pair needs one with a recurrent state and one with bounded keys, such as norm and diag",
            )
        shared = {"position": position, "dropout": dropout}
        self.first = self._half(first, shared, first_options or {})
        self.second = self._half(second, shared, second_options or {})

    @classmethod
    def window(cls, options: dict[str, Any]) -> int | None:
        """That of the attention which keeps keys."""
        for half in ("first", "second"):
            name = options[half]
            found = mixer_class(name).window({**mixer_options(name), **(options[f"{half}_options"] or {})})
            if found is not None:
                return found
        return None

    def _half(self, name: str, shared: dict[str, Any], own: dict[str, Any]) -> AttentionMixer:
        understood = {key: value for key, value in shared.items() if key in mixer_options(name)}
        mixer = build_mixer(
            name,
            hidden_size=self.hidden_size // 2,
            num_heads=self.num_heads,
            causal=self.causal,
            max_length=self.max_length,
            **{**understood, **own},
        )
        if not isinstance(mixer, AttentionMixer):
            raise ConfigError(
                f"{self.name}: '{name}' needs more of its input than queries, keys and values", "use diag and norm"
            )
        width, half = self.hidden_size, mixer.hidden_size
        mixer.q_proj = XavierLinear(width, half, gain=mixer.qkv_gain)
        mixer.k_proj = XavierLinear(width, half, gain=mixer.qkv_gain)
        mixer.v_proj = XavierLinear(width, half, gain=mixer.qkv_gain)
        mixer.o_proj = XavierLinear(half, width, zero_bias=True)
        return mixer


def with_state(mixed: Tensor | tuple[Tensor, State]) -> tuple[Tensor, State]:
    """What an attention returned, as (y, its part of the pair's state)."""
    return mixed if isinstance(mixed, tuple) else (mixed, {})


def state_of(mixer: AttentionMixer, state: State | None) -> State | None:
    """The part of a pair's state that belongs to one of its attentions."""
    if state is None:
        return None
    mine = ("memory",) if mixer.traits.cache == "linear_attention" else ("keys", "values")
    return {key: value for key, value in state.items() if key == "length" or key in mine}
