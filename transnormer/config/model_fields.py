"""Every field of a model, once: TransNormerConfig inherits them, the section `model` has a key for each with a meaning.

Here and not in `models`, so that keys are known without torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Rule:
    """What a field may be."""

    # What it means; a field without a meaning is no key: a preset or the task decides it.
    meaning: str = ""
    choices: tuple[str, ...] = ()
    is_count: bool = False
    at_most: int = 2**24  # of a count
    is_probability: bool = False


_NORMS = ("rms", "layer", "batch", "scale")


@dataclass(kw_only=True)
class ModelFields:
    """What a model is, one field per decision; each ablation of the paper is a set of values."""

    vocab_size: Annotated[int, Rule(is_count=True, at_most=2**32)] = 259
    hidden_size: Annotated[int, Rule("model width", is_count=True)] = 512
    num_hidden_layers: Annotated[int, Rule("number of layers", is_count=True, at_most=1000)] = 6
    num_attention_heads: Annotated[int, Rule("number of heads; must divide hidden_size", is_count=True)] = 8
    # Unset: int(8d/3) for the GLU, 4d for the FFN.
    intermediate_size: Annotated[int | None, Rule("inner width of the GLU or FFN", is_count=True)] = None
    feed_forward: Annotated[str, Rule("GLU (the paper's) or a two-layer FFN", choices=("glu", "ffn"))] = "glu"
    hidden_act: Annotated[str, Rule("activation of the GLU or FFN", choices=("silu", "relu", "gelu"))] = "silu"
    causal: bool = True
    # Unset: L//2 `diag` then `norm`.
    mixers: Annotated[list[str] | None, Rule("one mixer name per layer, e.g. [diag, diag, norm, norm]")] = None
    mixer_options: Annotated[
        dict[str, dict[str, Any]] | None, Rule("options by mixer name, e.g. {diag: {block_size: 128}}")
    ] = None
    # RMSNorm without parameters, LayerNorm, BatchNorm (not for causal models), or ScaleNorm, an RMSNorm with one gain.
    norm: Annotated[
        str, Rule("norm of the sublayers; the one inside NormAttention is mixer_options.norm.xnorm", choices=_NORMS)
    ] = "rms"
    norm_first: bool = True
    # Norm after the last layer; unset: as `norm` before pre-norm's output, none after post-norm's own.
    final_norm: Annotated[str | None, Rule(choices=(*_NORMS, "none"))] = None
    # A LayerNorm right after the embedding, as RoBERTa has it.
    norm_embedding: bool = False
    # A `table` with a row for every id, or one linear map of the id as a `number` from 0 to vocab_size - 1: for pixels.
    embedding: Annotated[
        str, Rule("of ids: a table, or a linear map of the id as a number (pixels)", choices=("table", "number"))
    ] = "table"
    scale_embedding: Annotated[bool, Rule("multiply token embeddings by sqrt(hidden_size)")] = True
    # Unset: "lrpe", which the authors ran, where a mixer can rotate, else "none".
    position: Annotated[
        str | None,
        Rule("rotation inside attention; 'none' is the paper-literal form", choices=("none", "rope", "lrpe")),
    ] = None
    position_embedding: Annotated[
        str,
        Rule("absolute positions added to the token embedding", choices=("none", "sinusoidal", "learned")),
    ] = "sinusoidal"
    max_position_embeddings: Annotated[
        int, Rule("longest input a learned table can take", is_count=True, at_most=2**31)
    ] = 512
    # `padded_mean` divides the sum over real tokens by max_position_embeddings, as Skyformer's code does.
    pooling: Annotated[
        str,
        Rule("how a classifier makes one vector of all tokens", choices=("mean", "padded_mean", "first", "last")),
    ] = "mean"
    classifier_hidden_size: Annotated[int | None, Rule(is_count=True)] = None
    classifier_act: Annotated[str, Rule(choices=("relu", "tanh"))] = "relu"
    dropout: Annotated[float, Rule("on embeddings and sublayer outputs", is_probability=True)] = 0.1
    attention_dropout: Annotated[float, Rule("on attention weights", is_probability=True)] = 0.0
    # Behind the activation of a feed-forward layer, where Skyformer's FFN has one.
    activation_dropout: Annotated[float, Rule("inside the feed-forward layers", is_probability=True)] = 0.0
    # Unset: as `dropout`, also where another task changes that.
    classifier_dropout: Annotated[float | None, Rule("inside a classifier", is_probability=True)] = None
    init_scheme: Annotated[str, Rule(choices=("xavier", "normal"))] = "xavier"
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    # A bias of the causal head; the masked one has one always, as RoBERTa's.
    lm_head_bias: bool = False
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def fill_unset(self) -> None:
        """Give the fields that are None, but for ids, the values that follow from others."""
        if self.mixers is None:
            self.mixers = diag_then_norm(self.num_hidden_layers)
        if self.mixer_options is None:
            self.mixer_options = {}
        if self.intermediate_size is None:
            glu = self.feed_forward == "glu"
            self.intermediate_size = int(8 * self.hidden_size / 3) if glu else 4 * self.hidden_size
        if self.final_norm is None:
            self.final_norm = self.norm if self.norm_first else "none"
        if self.classifier_hidden_size is None:
            self.classifier_hidden_size = self.hidden_size


def diag_then_norm(num_layers: int) -> list[str]:
    """The paper's order: DiagAttention in the first half (rounded down), NormAttention in the rest."""
    return ["diag"] * (num_layers // 2) + ["norm"] * (num_layers - num_layers // 2)


@cache
def field_types() -> dict[str, Any]:
    """The type of every field."""
    return get_type_hints(ModelFields)


@cache
def field_rules() -> dict[str, Rule]:
    """The rule of every field that has one."""
    hints = get_type_hints(ModelFields, include_extras=True)
    return {name: get_args(hint)[1] for name, hint in hints.items() if get_origin(hint) is Annotated}
