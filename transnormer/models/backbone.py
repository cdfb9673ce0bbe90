"""TransNormerModel: embedding, layers, final norm. The one backbone of every method, size and head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils import can_return_tuple

from transnormer.errors import ConfigError
from transnormer.mixers.components.batch_norm import BatchNorm
from transnormer.mixers.components.context import Context
from transnormer.mixers.components.packed_row import PackedRow, packed_row
from transnormer.mixers.components.packing import Packing
from transnormer.mixers.components.positions import Rotation, sinusoidal_embedding, token_positions
from transnormer.mixers.components.state import FixedState
from transnormer.mixers.contract import Mixer
from transnormer.mixers.registry import mixer_class, mixers_with_matrix
from transnormer.models.cache import DecodeCache, read_state, seen_tokens, write_state
from transnormer.models.config import TransNormerConfig
from transnormer.models.embedding import NumberEmbedding, TokenEmbedding
from transnormer.models.layers import Layer, ScaleNorm, build_norm, normed
from transnormer.ops.shapes import check_are_tensors, check_mask_dtype, zero_padding


class TransNormerPreTrainedModel(PreTrainedModel):
    """What the backbone and all heads share: configuration class and initialisation."""

    config_class = TransNormerConfig
    config: TransNormerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ("Layer",)
    _skip_keys_device_placement = ("past_key_values",)
    # Positions multiply the angles of rotations: in bfloat16 they would be off by radians after some hundred tokens.
    _keep_in_fp32_modules_strict = ("rotation",)

    @property
    def _is_stateful(self) -> bool:
        """Whether transformers must refuse assisted generation: only where all keys are kept a state is rolled back."""
        return any(kind != "full_attention" for kind in self.config.layer_types)

    def _init_weights(self, module: nn.Module) -> None:
        """`xavier`: fairseq's language models. `normal`: BERT's N(0, 0.02) for every matrix, zero biases."""
        config = self.config
        if isinstance(module, nn.Embedding):
            # Scaled embeddings enter the model times sqrt(d), and must have unit variance there.
            scaled = config.init_scheme == "xavier" and config.scale_embedding and isinstance(module, TokenEmbedding)
            nn.init.normal_(module.weight, std=config.hidden_size**-0.5 if scaled else config.initializer_range)
        elif config.init_scheme == "normal" and isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=config.initializer_range)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear | nn.LayerNorm | BatchNorm | ScaleNorm | Rotation | Mixer):
            module.reset_parameters()

    def _set_gradient_checkpointing(
        self, enable: bool = True, gradient_checkpointing_func: Callable[..., Any] = checkpoint, every_n_layers: int = 1
    ) -> None:
        """What `gradient_checkpointing_enable` and `_disable` call: flag the layers that the backward recomputes."""
        if enable and self.config.norm == "batch":
            raise ConfigError(
                "gradient checkpointing runs each layer twice, and its BatchNorm would count each batch twice",
                "choose another norm, or train without gradient checkpointing",
            )
        for index, layer in enumerate(cast(Sequence[Layer], self.base_model.layers)):
            layer.gradient_checkpointing = enable and index % every_n_layers == 0
            layer._gradient_checkpointing_func = gradient_checkpointing_func


class TransNormerModel(TransNormerPreTrainedModel):
    """The model without a head: token ids [B, T] to hidden states [B, T, hidden_size].

    >>> import torch
    >>> model = tn.TransNormerModel(tn.preset("t2-tiny"))
    >>> model(torch.randint(0, 256, (2, 100))).last_hidden_state.shape
    torch.Size([2, 100, 128])
    """

    def __init__(self, config: TransNormerConfig) -> None:
        super().__init__(config)
        assert config.mixers is not None
        self.embed_tokens: nn.Module
        if config.embedding == "number":
            self.embed_tokens = NumberEmbedding(config.vocab_size - 1, config.hidden_size)
        else:
            self.embed_tokens = TokenEmbedding(config.vocab_size, config.hidden_size)
        if config.position_embedding == "learned":
            self.embed_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        if config.norm_embedding:
            self.embed_norm = nn.LayerNorm(config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(Layer(config, mixer) for mixer in config.mixers)
        assert config.final_norm is not None
        self.final_norm = build_norm(config.final_norm, config.hidden_size)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        position_ids: Tensor | None = None,
        right_padded: bool = False,
        context: Context | None = None,
        cu_seqlens: Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        max_length_q: int | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """`attention_mask` [B, past + T], 1 = real token, padding anywhere; positions count real tokens only.

        `position_ids` [B, T] says otherwise to the absolute positions added to the embedding, and only to them.
        `right_padded` promises that each row has its padding at the end, which saves sorting it there.
        `output_attentions` adds the weights [B, H, T, T] of each layer, written out beside the computation, which never
        holds them for most methods; where a method has none, that is an error.
        `context` says that the tokens are this process's piece of sequences that a group of processes shares.
        `cu_seqlens` [N + 1] says that the one row [1, T] is N sequences, packed, none of which sees another; with a
        context it is that of the whole row. transformers' collators call it `cu_seq_lens_q`; `max_length_q` is theirs,
        too, the length of the longest sequence, which spares work where `cu_seqlens` is on a GPU.
        """
        if (input_ids is None) == (inputs_embeds is None):
            given = "neither" if input_ids is None else "both"
            raise ConfigError(f"pass exactly one of input_ids and inputs_embeds, got {given}")
        tokens = input_ids if input_ids is not None else inputs_embeds
        assert tokens is not None
        if inputs_embeds is None:
            check_ids("input_ids", tokens, self.config)
        else:
            _check_embedded(tokens, self.config)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        if output_attentions:
            require_matrices(self.config, past_key_values if past_key_values is not None else use_cache)
        if use_cache and past_key_values is None:
            past_key_values = DecodeCache(self.config)
        if past_key_values is not None and not self.config.causal:
            raise ConfigError("a bidirectional model has no decode state", "call it without past_key_values")

        if context is not None:
            _check_piece(past_key_values, output_attentions, attention_mask, right_padded)
        row = None
        if (bounds := cu_seqlens if cu_seqlens is not None else cu_seq_lens_q) is not None:
            _check_packable(past_key_values, output_attentions)
            row = packed_row("the model", bounds, tokens, attention_mask, context, max_length_q)
        elif position_ids is not None and attention_mask is None and past_key_values is None:
            _check_one_sequence(position_ids)

        new = tokens.shape[1]
        past = 0 if past_key_values is None else seen_tokens(past_key_values, self.config)
        mask, length = _split_mask(attention_mask, tokens, past)
        # One token is packed as it stands.
        packing = Packing(mask) if mask is not None and new > 1 and not right_padded else None
        if packing is not None:
            tokens, mask = packing.pack(tokens), packing.mask
            position_ids = None if position_ids is None else packing.pack(position_ids)

        # Padding is whatever a caller left there, perhaps no number.
        embedded = self._look_up(tokens) if inputs_embeds is None else zero_padding(tokens, mask)
        first = past if context is None else context.first_position(embedded)
        if position_ids is None:
            position_ids = token_positions(embedded, None if past_key_values is None else length)
            position_ids = position_ids if context is None else position_ids + first
            position_ids = position_ids if row is None else row.positions
        x = self._embed(embedded, position_ids, first + new if row is None else row)
        hidden_states, attentions = [x], []
        for index, layer in enumerate(cast(Sequence[Layer], self.layers)):
            if output_attentions:
                attentions.append(layer.attention_matrix(x, mask))
            if past_key_values is None:
                x = layer.mixed(x, mask, context, row)
            else:
                x, state = layer(x, mask, read_state(past_key_values, index, length))
                write_state(past_key_values, index, state, new)
            hidden_states.append(x)
        if isinstance(past_key_values, DecodeCache):
            past_key_values.seen_tokens += new
        x = normed(self.final_norm, x, mask)
        hidden_states[-1] = x
        if packing is not None:
            x = packing.unpack(x)
            hidden_states = [packing.unpack(h) for h in hidden_states] if output_hidden_states else []
            attentions = [packing.unpack_pairs(weights) for weights in attentions]
        return BaseModelOutputWithPast(
            last_hidden_state=x,
            past_key_values=past_key_values,
            hidden_states=tuple(hidden_states) if output_hidden_states else None,
            attentions=tuple(attentions) if output_attentions else None,
        )

    def step(self, tokens: Tensor, states: Sequence[FixedState]) -> Tensor:
        """One more token [B, 1] of each row to its hidden state [B, 1, hidden_size], on one fixed state a layer.

        The states are changed in place, all but their `length`; whether the sequence still fits, the caller must know.
        """
        x = self._embed(self.embed_tokens(tokens), states[0]["length"][:, None], needed=1)
        for layer, state in zip(self.layers, states, strict=True):
            x, _ = layer(x, None, state)
        return self.final_norm(x)

    def _look_up(self, ids: Tensor) -> Tensor:
        """The embedding of input_ids; an id that it does not have is named where the device says that there is one.

        That is the CPU. A GPU stops at an assertion, and a look at the ids beforehand would wait for it at each call.
        """
        try:
            return self.embed_tokens(ids)
        except IndexError:
            unknown = ids[(ids < 0) | (ids >= self.config.vocab_size)]
            if not len(unknown):
                raise
            raise ConfigError(
                f"input_ids has {unknown[0].item()}, but the vocabulary is 0 to {self.config.vocab_size - 1}",
                "take the model's own tokenizer; for added tokens: model.resize_token_embeddings(len(tokenizer))",
            ) from None

    def _embed(self, x: Tensor, positions: Tensor, needed: int | PackedRow) -> Tensor:
        """Add what the embedding knows about positions [T] or [B, T] to x [B, T, hidden_size].

        `needed` is how many positions there must be, or a row to ask.
        """
        config = self.config
        if config.scale_embedding and config.embedding == "table":
            x = x * config.hidden_size**0.5
        if config.position_embedding == "sinusoidal":
            x = x + sinusoidal_embedding(positions, config.hidden_size, x.dtype)
        elif config.position_embedding == "learned":
            needed = needed.needed_positions if isinstance(needed, PackedRow) else needed
            if needed > config.max_position_embeddings:
                raise ConfigError(
                    f"input of {needed} tokens, but the learned positions end at {config.max_position_embeddings}",
                    "raise max_position_embeddings or shorten the input",
                )
            x = x + self.embed_positions(positions)
        if config.norm_embedding:
            x = self.embed_norm(x)
        return self.dropout(x)

    def get_input_embeddings(self) -> nn.Module:
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embed_tokens = value


def require_matrices(config: TransNormerConfig, cache: object = None) -> None:
    """Raise where a layer's method has no attention matrix, or where a cache has hidden the tokens before."""
    for index, name in enumerate(config.mixers or ()):
        if why := mixer_class(name).traits.no_matrix:
            raise ConfigError(
                f"layer {index + 1} is {name}, which has no attention matrix: {why}",
                f"these methods have one: {', '.join(mixers_with_matrix())}",
            )
    if cache:
        raise ConfigError(
            "output_attentions needs all tokens at once, a decode state has forgotten them",
            "call the model without past_key_values and use_cache",
        )


def check_ids(name: str, ids: Tensor, config: TransNormerConfig) -> None:
    """Ids are [batch, tokens]; those of a table have a dtype that PyTorch looks up by."""
    if ids.dim() != 2 or ids.shape[1] < 1:
        raise ConfigError(
            f"{name} must be [batch, tokens], at least one token, got {list(ids.shape)}",
            f"one sequence is a batch of one: {name}[None]",
        )
    if config.embedding == "table" and ids.dtype not in (torch.int64, torch.int32):
        raise ConfigError(f"{name} must be torch.int64 or torch.int32, got {ids.dtype}", f"use {name}.long()")


def _check_piece(cache: Cache | None, attentions: bool, mask: Tensor | None, right_padded: bool) -> None:
    """What processes that share sequences cannot do."""
    if cache is not None or attentions:
        raise ConfigError("processes that share a sequence have neither decode states nor attention matrices")
    if mask is not None and not right_padded:
        raise ConfigError(
            "processes that share sequences need their padding on the right, and right_padded=True",
            "padding elsewhere would have to move from one process to another",
        )


def _check_packable(cache: Cache | None, attentions: bool) -> None:
    """What packed sequences cannot have."""
    if cache is not None or attentions:
        raise ConfigError(
            "packed sequences have neither decode states nor attention matrices",
            "call the model with each sequence, or with a padded batch",
        )


def _check_one_sequence(position_ids: Tensor) -> None:
    """Positions that begin anew are those of packed sequences, which would see each other without `cu_seqlens`."""
    if position_ids.shape[0] == 1 and not torch.compiler.is_compiling() and (position_ids.diff() <= 0).any():
        raise ConfigError(
            "position_ids begin anew within the row, but nothing says that its sequences are apart",
            "pass cu_seqlens; DataCollatorWithFlattening makes them with return_flash_attn_kwargs=True",
        )


def _check_embedded(x: Tensor, config: TransNormerConfig) -> None:
    if x.dim() != 3 or x.shape[1] < 1 or x.shape[2] != config.hidden_size:
        raise ConfigError(
            f"inputs_embeds must be [batch, tokens, {config.hidden_size}], at least one token, got {list(x.shape)}"
        )


def check_attention_mask(name: str, mask: Tensor, tokens: Tensor, past: int = 0) -> None:
    """The mask of tokens [B, T, ...] behind `past` others is [B, past + T], 1 = real token."""
    check_are_tensors("the model", **{name: mask})
    batch, new = tokens.shape[:2]
    if mask.shape != (batch, past + new):
        raise ConfigError(
            f"{name} must be [batch, past + new tokens] = [{batch}, {past + new}], got {list(mask.shape)}"
        )
    check_mask_dtype(name, mask)


def _split_mask(attention_mask: Tensor | None, tokens: Tensor, past: int) -> tuple[Tensor | None, Tensor]:
    """The mask of the new tokens [B, T] and the number of real tokens before them [B]."""
    if attention_mask is None:
        return None, torch.full(tokens.shape[:1], past, dtype=torch.long, device=tokens.device)
    check_attention_mask("attention_mask", attention_mask, tokens, past)
    return attention_mask[:, past:].bool(), attention_mask[:, :past].long().sum(dim=1)
