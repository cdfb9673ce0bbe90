"""The four heads: causal LM, masked LM, classification of one sequence, classification of a pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.cache_utils import Cache
from transformers.modeling_outputs import (
    CausalLMOutputWithPast,
    MaskedLMOutput,
    SequenceClassifierOutput,
)
from transformers.utils import can_return_tuple

from transnormer.errors import ConfigError
from transnormer.mixers.components.linear import are_plain
from transnormer.models.backbone import (
    TransNormerModel,
    TransNormerPreTrainedModel,
    check_attention_mask,
    check_ids,
)
from transnormer.models.cache import DecodeCache, check_cache
from transnormer.models.classifier import ClassifierHead, classification_loss, pool
from transnormer.models.config import TransNormerConfig
from transnormer.ops import linear_cross_entropy, linear_cross_entropy_and_hits


def _require_table(config: TransNormerConfig) -> None:
    if config.embedding != "table":
        raise ConfigError(
            f"a language model predicts tokens, embedding: {config.embedding} has none", "set it to table"
        )


def _of_the_backbone(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Take out of a head's other arguments what goes on to the backbone; the rest is the loss function's.

    position_ids among them: if a head named them, generate() would pass them.
    """
    packed = ("cu_seqlens", "cu_seq_lens_q", "max_length_q")
    names = ("output_hidden_states", "output_attentions", "position_ids", "context", *packed)
    return {name: kwargs.pop(name) for name in names if name in kwargs}


class TransNormerForCausalLM(TransNormerPreTrainedModel, GenerationMixin):
    """Language model: token ids [B, T] to logits of the next token [B, T, vocab_size]; generates on a constant state.

    >>> import torch
    >>> model, tokens = tn.TransNormerForCausalLM(tn.preset("t2-tiny")), torch.randint(0, 256, (2, 100))
    >>> model(tokens, labels=tokens).logits.shape
    torch.Size([2, 100, 259])
    """

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: TransNormerConfig) -> None:
        super().__init__(config)
        if not config.causal:
            raise ConfigError("TransNormerForCausalLM needs a causal model", "set causal=True")
        _require_table(config)
        self.model = TransNormerModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.lm_head_bias)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        targets: Tensor | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """`labels` [B, T] are the input ids themselves (shifted inside; -100 is ignored).

        `targets` [B, T] are what each position should predict, nothing is shifted: with them the loss is the float32
        sum over those that are not -100, and there are no logits, in the result or in memory.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            past_key_values=past_key_values,
            use_cache=use_cache,
            **_of_the_backbone(kwargs),
        )
        logits, loss = None, None
        if targets is not None:
            loss = loss_without_logits(outputs.last_hidden_state, self.lm_head, targets, labels)
        else:
            kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits = self.lm_head(outputs.last_hidden_state[:, kept])
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def score_targets(
        self, input_ids: Tensor, targets: Tensor, past_key_values: Cache | None = None
    ) -> tuple[Tensor, Tensor]:
        """The summed loss of targets, and how many are the token that the model finds most likely; no logits.

        `targets` [B, S] are those of the last S of the tokens [B, T], which may come behind a cache.
        """
        states = self.model(input_ids=input_ids, past_key_values=past_key_values).last_hidden_state
        return score_without_logits(states[:, -targets.shape[1] :], self.lm_head, targets)

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """Give generate() the cache that also serves models whose layers are all recurrent."""
        wants_default = generation_config.use_cache and generation_config.cache_implementation in (None, "dynamic")
        if wants_default and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = DecodeCache(self.config)
            generation_config.cache_implementation = None  # transformers takes a cache or the name of one, not both
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)
        if (cache := model_kwargs.get("past_key_values")) is not None:
            check_cache(cache, self.config)

    def create_masks_for_generate(self, attention_mask: Tensor | None, **kwargs: Any) -> Tensor | None:
        """The mask stays [B, T]: the mixers make what they need of it."""
        return attention_mask


class MaskedLMHead(nn.Module):
    """RoBERTa's prediction head: dense, GELU, LayerNorm, then the tied embedding with a bias."""

    def __init__(self, config: TransNormerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)

    def features(self, x: Tensor) -> Tensor:
        """What the decoder makes logits of."""
        return self.norm(F.gelu(self.dense(x)))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.features(x))


class TransNormerForMaskedLM(TransNormerPreTrainedModel):
    """Masked language model: token ids [B, T], some masked, to logits of the right ones [B, T, vocab_size].

    >>> import torch
    >>> model = tn.TransNormerForMaskedLM(tn.preset("t2-tiny", causal=False))
    >>> model(torch.randint(0, 256, (2, 100))).logits.shape
    torch.Size([2, 100, 259])
    """

    _tied_weights_keys = {"lm_head.decoder.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: TransNormerConfig) -> None:
        super().__init__(config)
        if config.causal:
            raise ConfigError("TransNormerForMaskedLM needs a bidirectional model", "set causal=False")
        _require_table(config)
        self.model = TransNormerModel(config)
        self.lm_head = MaskedLMHead(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.lm_head.decoder = new_embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        targets: Tensor | None = None,
        most_targets: int | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """`labels` [B, T]: the right token where one was masked, -100 elsewhere.

        `targets` [B, T] are the same; with them the loss is the float32 sum over those that are not -100, and there are
        no logits, in the result or in memory. Where no row has more of them than `most_targets`, so many positions of
        each pass through the head, the others need not: a number that is known beforehand, for shapes that depend on
        data would stop compilers and CUDA graphs.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            **_of_the_backbone(kwargs),
        )
        logits, loss = None, None
        if targets is not None:
            states = outputs.last_hidden_state
            if most_targets is not None:
                states, targets = _at_targets(states, targets, most_targets)
            features = self.lm_head.features(states)
            loss = loss_without_logits(features, self.lm_head.decoder, targets, labels)
        else:
            logits = self.lm_head(outputs.last_hidden_state)
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )

    def score_targets(self, input_ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The summed loss of targets [B, T], and how many are the token that the model finds most likely; no logits."""
        features = self.lm_head.features(self.model(input_ids=input_ids).last_hidden_state)
        return score_without_logits(features, self.lm_head.decoder, targets)


def _at_targets(states: Tensor, targets: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """`most` positions of each row, those with a target among them: [B, T, d], [B, T] become [B, K, d], [B, K]."""
    places = (targets != -100).int().topk(min(most, targets.shape[1]), dim=1, sorted=False).indices
    return states.gather(1, places.unsqueeze(-1).expand(-1, -1, states.shape[-1])), targets.gather(1, places)


def score_without_logits(x: Tensor, decoder: nn.Linear, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The summed cross entropy of decoder(x) [B, T, vocab_size] against targets [B, T], and the number of hits."""
    if are_plain(decoder):
        return linear_cross_entropy_and_hits(x.flatten(0, 1), decoder.weight, decoder.bias, targets.flatten())
    logits = decoder(x).flatten(0, 1).float()
    # An ignored target is -100, which no prediction equals.
    hits = (logits.argmax(dim=-1) == targets.flatten()).sum()
    return F.cross_entropy(logits, targets.flatten(), reduction="sum"), hits


def loss_without_logits(x: Tensor, decoder: nn.Linear, targets: Tensor, labels: Tensor | None) -> Tensor:
    """The summed cross entropy of decoder(x) [B, T, vocab_size] against targets [B, T]."""
    if labels is not None:
        raise ConfigError("pass labels or targets, not both", "labels give a mean and logits, targets a sum alone")
    if targets.shape != x.shape[:2]:
        raise ConfigError(f"targets must be [B, T] = {list(x.shape[:2])}, got {list(targets.shape)}")
    if not are_plain(decoder):
        return F.cross_entropy(decoder(x).flatten(0, 1).float(), targets.flatten(), reduction="sum")
    return linear_cross_entropy(x.flatten(0, 1), decoder.weight, decoder.bias, targets.flatten())


def _require_rows(kwargs: dict[str, Any]) -> None:
    """A classifier pools rows: sequences packed in one would get one answer together."""
    if any(kwargs.get(name) is not None for name in ("cu_seqlens", "cu_seq_lens_q")):
        raise ConfigError(
            "a classifier takes one sequence a row, and cu_seqlens packs several into one",
            "pad them to a batch [B, T] with an attention_mask",
        )


def _pool(x: Tensor, mask: Tensor | None, config: TransNormerConfig) -> Tensor:
    return pool(x, mask, config.pooling, config.max_position_embeddings)


class TransNormerForSequenceClassification(TransNormerPreTrainedModel):
    """Classifier of sequences (GLUE, four of the five LRA tasks): token ids [B, T] to logits [B, num_labels].

    >>> import torch
    >>> model = tn.TransNormerForSequenceClassification(tn.preset("t2-tiny", causal=False, num_labels=5))
    >>> model(torch.randint(0, 256, (2, 100))).logits.shape
    torch.Size([2, 5])
    """

    def __init__(self, config: TransNormerConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = TransNormerModel(config)
        self.classifier = ClassifierHead(config.hidden_size, config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        right_padded: bool = False,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """`labels` [B]: class indices, or values when num_labels is 1; `right_padded`: see TransNormerModel.

        The config's problem_type, if set, decides instead: "regression" and "multi_label_classification" take labels
        [B, num_labels].
        """
        _require_rows(kwargs)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            position_ids=position_ids,
            right_padded=right_padded,
            output_hidden_states=kwargs.pop("output_hidden_states", None),
            output_attentions=kwargs.pop("output_attentions", None),
        )
        logits = self.classifier(_pool(outputs.last_hidden_state, attention_mask, self.config))
        loss = None if labels is None else classification_loss(logits, labels, self.config.problem_type)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class TransNormerForPairClassification(TransNormerPreTrainedModel):
    """Classifier of pairs, from [x, y, x⊙y, x−y] of two sequences that do not see each other (LRA Retrieval).

    Token ids [B, T] and [B, T'] to logits [B, num_labels].

    >>> import torch
    >>> model = tn.TransNormerForPairClassification(tn.preset("t2-tiny", causal=False, num_labels=2))
    >>> first, second = torch.randint(0, 256, (2, 3, 100))
    >>> model(first, pair_input_ids=second).logits.shape
    torch.Size([3, 2])
    """

    def __init__(self, config: TransNormerConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = TransNormerModel(config)
        self.classifier = ClassifierHead(4 * config.hidden_size, config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        pair_input_ids: Tensor,
        attention_mask: Tensor | None = None,
        pair_attention_mask: Tensor | None = None,
        right_padded: bool = False,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """`labels` [B]: class indices, or what problem_type wants; `right_padded`: see TransNormerModel.

        Both sides are one batch of 2B sequences to the model: half as many kernels, each twice as large, and one set of
        statistics for a BatchNorm. Attentions are [2B, H, T, T], those of the second sequences behind the others.
        """
        _require_rows(kwargs)
        for prefix, ids, mask in (("", input_ids, attention_mask), ("pair_", pair_input_ids, pair_attention_mask)):
            check_ids(f"{prefix}input_ids", ids, self.config)
            if mask is not None:
                check_attention_mask(f"{prefix}attention_mask", mask, ids)
        if input_ids.shape[0] != pair_input_ids.shape[0]:
            raise ConfigError(
                f"{input_ids.shape[0]} sequences, but {pair_input_ids.shape[0]} to pair them with",
                "input_ids and pair_input_ids are [B, T] and [B, T']",
            )
        ids, mask = _stacked((input_ids, pair_input_ids), (attention_mask, pair_attention_mask))
        outputs = self.model(
            input_ids=ids,
            attention_mask=mask,
            right_padded=right_padded,
            output_attentions=kwargs.pop("output_attentions", None),
        )
        x, y = _pool(outputs.last_hidden_state, mask, self.config).chunk(2)
        logits = self.classifier(torch.cat([x, y, x * y, x - y], dim=-1))
        loss = None if labels is None else classification_loss(logits, labels, self.config.problem_type)
        return SequenceClassifierOutput(loss=loss, logits=logits, attentions=outputs.attentions)


def _stacked(ids: Sequence[Tensor], masks: Sequence[Tensor | None]) -> tuple[Tensor, Tensor | None]:
    """Batches [B, T] one below the other, the shorter padded on the right; the mask is None where nothing is padded."""
    longest = max(part.shape[1] for part in ids)
    if all(mask is None for mask in masks) and all(part.shape[1] == longest for part in ids):
        return torch.cat(list(ids)), None
    rows, real = [], []
    for part, mask in zip(ids, masks, strict=True):
        missing = (0, longest - part.shape[1])
        rows.append(F.pad(part, missing))
        real.append(F.pad(torch.ones_like(part, dtype=torch.bool) if mask is None else mask.bool(), missing))
    return torch.cat(rows), torch.cat(real)
