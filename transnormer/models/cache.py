"""The decode state of a model, kept in transformers' own cache layers so that generate(), beams and batches work.

A DiagAttention layer keeps at most one block of keys and values ("chunked_attention"), a NormAttention layer one matrix
per head ("linear_attention"): the state of a TransNormer does not grow with the sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicSlidingWindowLayer, LinearAttentionLayer

from transnormer.errors import ConfigError
from transnormer.mixers.contract import State
from transnormer.models.config import TransNormerConfig


class DecodeCache(DynamicCache):
    """transformers' DynamicCache that also counts tokens when every layer is recurrent and none keeps keys.

    Rows are chosen and repeated in all that a layer holds; transformers moves keys and values alone.
    NormAttention's hold a memory [B, H, D, D], DiagAttention's keys and values [B, H, L, D] of less than a block.

    >>> import torch
    >>> model = tn.TransNormerForCausalLM(tn.preset("t2-tiny"))
    >>> cache = tn.DecodeCache(model.config)
    >>> _ = model(input_ids=torch.zeros(1, 20, dtype=torch.long), past_key_values=cache)
    >>> cache.get_seq_length()
    20
    """

    def __init__(self, config: TransNormerConfig) -> None:
        super().__init__(config=config)
        self.seen_tokens = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen_tokens

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Keys that a layer has for so many queries, and the position of the first; a state stands for all tokens."""
        if isinstance(self.layers[layer_idx], CacheLayerMixin):
            return super().get_mask_sizes(query_length, layer_idx)
        return self.seen_tokens + query_length, 0

    def reset(self) -> None:
        super().reset()
        self.seen_tokens = 0

    def batch_select_indices(self, indices: Tensor) -> None:
        self._change_rows(lambda held: held[indices])

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._change_rows(lambda held: held.repeat_interleave(repeats, dim=0))

    def _change_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        for layer in self.layers:
            if isinstance(layer, LinearAttentionLayer):
                for slot, memory in layer.recurrent_states.items():
                    if memory is not None:
                        layer.recurrent_states[slot] = change(memory)
            if isinstance(layer, CacheLayerMixin) and layer.is_initialized:
                layer.keys, layer.values = change(layer.keys), change(layer.values)

    @property
    def is_croppable(self) -> bool:
        """Whether `crop` can forget any number of tokens, which needs all keys."""
        return not any(isinstance(layer, LinearAttentionLayer | DynamicSlidingWindowLayer) for layer in self.layers)

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens, which must be real ones in every row: crop(-3) forgets three.

        Only where all keys are kept: a recurrent state cannot be rolled back, nor a window that has moved on.
        """
        if not -self.seen_tokens <= tokens_to_remove <= 0:
            raise ConfigError(
                f"crop({tokens_to_remove}) of a cache of {self.seen_tokens} tokens", "crop(-3) forgets the last three"
            )
        if tokens_to_remove == 0:
            return
        kept = self.seen_tokens + tokens_to_remove
        for layer in self.layers:
            if isinstance(layer, LinearAttentionLayer) or layer.keys.shape[-2] != self.seen_tokens:
                raise ConfigError(
                    f"{type(layer).__name__} does not keep what it was before its last tokens",
                    "keep a copy of the cache (copy.deepcopy), or read the sequence again",
                )
        for layer in self.layers:
            layer.keys, layer.values = layer.keys[..., :kept, :], layer.values[..., :kept, :]
            if isinstance(layer, DynamicSlidingWindowLayer):
                layer.cumulative_length = kept
        self.seen_tokens = kept


# What a cache layer must be to hold the state of a mixer, by the name in the mixer's traits. Static layers with a
# window are none of these: their keys have a fixed number of slots, and they count tokens in their own `update` alone.
_HOLDERS: dict[str, tuple[type, ...]] = {
    "full_attention": (CacheLayerMixin,),
    "chunked_attention": (DynamicSlidingWindowLayer,),
    "linear_attention": (LinearAttentionLayer,),
    "hybrid_sliding": (LinearAttentionLayer, DynamicSlidingWindowLayer),
}


def check_cache(cache: Cache, config: TransNormerConfig) -> None:
    """Raise for a cache that would lose a part of this model's state, or the number of its tokens.

    A DynamicCache that was made for no model yet gets the layers of this one.
    """
    hint = "leave cache_implementation out, or pass past_key_values=transnormer.DecodeCache(model.config)"
    if not isinstance(cache, Cache):
        raise ConfigError(f"past_key_values must be a transformers Cache, got {type(cache).__name__}", hint)
    kind, layers, wanted = type(cache).__name__, cache.layers, config.layer_types
    if isinstance(cache, DynamicCache) and not layers:
        layers = DynamicCache(config=config).layers
    if len(layers) != len(wanted):
        raise ConfigError(f"{kind} has {len(layers)} layers, the model has {len(wanted)}", hint)
    for index, (layer, name) in enumerate(zip(layers, wanted, strict=True)):
        if not all(isinstance(layer, holder) for holder in _HOLDERS.get(name, ())):
            raise ConfigError(
                f"{kind} keeps {type(layer).__name__} for layer {index}, which cannot hold its state ({name})", hint
            )
    if not isinstance(cache, DecodeCache) and not any(isinstance(layer, CacheLayerMixin) for layer in layers):
        raise ConfigError(f"{kind} cannot count the tokens of a model whose layers are all recurrent", hint)
    if not cache.layers:
        cache.layers = layers


def seen_tokens(cache: Cache, config: TransNormerConfig) -> int:
    """Tokens a cache has taken in, padding included."""
    check_cache(cache, config)
    return cache.get_seq_length()


def read_state(cache: Cache, index: int, length: Tensor) -> State:
    """The state of layer `index` after `length` [B] real tokens; only `length` before the first token."""
    layer = cache.layers[index]
    state = {"length": length}
    if isinstance(layer, LinearAttentionLayer) and layer.is_recurrent_states_initialized[0]:
        state["memory"] = cast(Tensor, layer.recurrent_states[0])
    if isinstance(layer, CacheLayerMixin) and layer.is_initialized and layer.get_seq_length() > 0:
        state["keys"] = cast(Tensor, layer.keys).transpose(1, 2)  # transformers keeps [B, H, L, D]
        state["values"] = cast(Tensor, layer.values).transpose(1, 2)
    return state


def write_state(cache: Cache, index: int, state: State, new_tokens: int) -> None:
    """Store the state of layer `index` after `new_tokens` more tokens."""
    layer = cache.layers[index]
    if "memory" in state:
        layer.update_recurrent_state(state["memory"])
        layer.has_previous_state[0] = True
        layer.device = state["memory"].device
    if "keys" in state:
        keys, values = state["keys"].transpose(1, 2), state["values"].transpose(1, 2)
        if not layer.is_initialized:
            layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        if hasattr(layer, "cumulative_length"):
            layer.cumulative_length += new_tokens


def state_bytes(cache: Cache) -> int:
    """Bytes of everything a cache holds, of all B sequences: memories [B, H, D, D], keys and values [B, H, L, D].

    >>> import torch
    >>> model = tn.TransNormerForCausalLM(tn.preset("t2-tiny"))
    >>> cache, sizes = tn.DecodeCache(model.config), []
    >>> for _ in range(2):
    ...     _ = model(input_ids=torch.zeros(1, 64, dtype=torch.long), past_key_values=cache)
    ...     sizes.append(tn.state_bytes(cache))
    >>> sizes[0] == sizes[1]  # it does not grow
    True
    """
    total = 0
    for layer in cache.layers:
        held = list(layer.recurrent_states.values()) if isinstance(layer, LinearAttentionLayer) else []
        if isinstance(layer, CacheLayerMixin):
            held += [layer.keys, layer.values]
        total += sum(tensor.nbytes for tensor in held if isinstance(tensor, torch.Tensor))
    return total
