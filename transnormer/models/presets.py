"""Models by name, '<method>-<size>': a method is its mixers, a size is the model config they run in.

Sizes are the paper's: `lm` and `mlm` from its language models (the two GLU widths of its table are swapped there; the
parameter counts show it), `lra-<task>` from Skyformer's protocol, which it follows; `mlm-small` is for small budgets,
`tiny` for a laptop; `350m` and `1b`, for real use, are ours. A method without a causal form has no causal sizes.
Competitors have the model configs that reproduce the paper's counts. `llama` is not in the paper: softmax attention in
the shell that today's models have, so that a reader sees both baselines.

Names and sizes are data: only making a config of them loads torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from transnormer.config.model_fields import ModelFields
from transnormer.config.schema import ModelSection
from transnormer.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from transnormer.models.config import TransNormerConfig

_TRANSNORMER = {"feed_forward": "glu", "norm": "rms", "position": "lrpe"}
_BASELINE = {"feed_forward": "ffn", "norm": "layer", "position": "none"}

METHODS: dict[str, dict[str, Any]] = {
    "t1": {**_TRANSNORMER, "mixer_options": {"diag": {"kind": "rela"}, "norm": {"feature_map": "elu"}}},
    "t2": {**_TRANSNORMER, "mixer_options": {"diag": {"kind": "softmax"}, "norm": {"feature_map": "1+elu"}}},
    "vanilla": {**_BASELINE, "mixers": "softmax"},
    "linear_elu": {**_BASELINE, "mixers": "linear_elu"},
    "performer": {**_BASELINE, "mixers": "performer"},
    "flash_quad": {**_BASELINE, "mixers": "flash_quad", "position": "rope"},
    "flash": {**_BASELINE, "mixers": "flash", "position": "rope"},
    "long_short": {**_BASELINE, "mixers": "long_short"},
    "cosformer": {**_BASELINE, "mixers": "cosformer"},
    "linformer": {**_BASELINE, "mixers": "linformer"},
    "reformer": {**_BASELINE, "mixers": "reformer"},
    "nystrom": {**_BASELINE, "mixers": "nystrom"},
    "kernelized": {**_BASELINE, "mixers": "kernelized"},
    "informer": {**_BASELINE, "mixers": "informer"},
    "bigbird": {**_BASELINE, "mixers": "bigbird"},
    "skyformer": {**_BASELINE, "mixers": "skyformer"},
    "llama": {**_TRANSNORMER, "mixers": "softmax", "position": "rope"},
}
# As the traits of their mixers say.
_NOT_CAUSAL = ("linformer", "nystrom", "kernelized", "informer", "bigbird", "skyformer")
# A method also goes by the name of its mixer.
_OTHER_NAMES = {"softmax": "vanilla"}

_LRA = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "causal": False,
    "position_embedding": "learned",
    "scale_embedding": False,
    "attention_dropout": 0.1,
    "pooling": "mean",
    "classifier_hidden_size": 128,
    "classifier_act": "relu",
    # The authors' LRA code rotates with fixed angles where their language models learn them.
    "glu": {"intermediate_size": 85, "position": "rope"},
    "ffn": {"intermediate_size": 128, "hidden_act": "gelu"},
}


def _lra(vocab_size: int, max_length: int, num_labels: int) -> dict[str, Any]:
    return {**_LRA, "vocab_size": vocab_size, "max_position_embeddings": max_length, "num_labels": num_labels}


# RoBERTa's.
_MLM = {
    "vocab_size": 50_265,
    "causal": False,
    "norm_first": False,
    "norm_embedding": True,
    "scale_embedding": False,
    "position_embedding": "learned",
    "attention_dropout": 0.1,
    "init_scheme": "normal",
    "pooling": "first",
    "classifier_act": "tanh",
    "ffn": {"hidden_act": "gelu"},
}


BYTE_TOKENS = 259  # bytes, <pad>, <eos>, <mask>

# "glu" and "ffn" hold what depends on the method's feed-forward layer.
SIZES: dict[str, dict[str, Any]] = {
    "lm": {
        "vocab_size": 267_744,
        "hidden_size": 512,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "causal": True,
        "max_position_embeddings": 512,
        "ffn": {"hidden_act": "relu"},
    },
    "mlm": {
        **_MLM,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "max_position_embeddings": 514,  # RoBERTa's table, of which 512 are used
    },
    "mlm-small": {
        **_MLM,
        "hidden_size": 512,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "max_position_embeddings": 256,
    },
    "lra-text": _lra(512, 4096, 2),
    "lra-listops": _lra(32, 2048, 10),
    "lra-retrieval": _lra(512, 4096, 2),
    "lra-pathfinder": _lra(512, 1024, 2),
    "lra-image": _lra(256, 1024, 10),
    "tiny": {
        "vocab_size": BYTE_TOKENS,
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "causal": True,
        "max_position_embeddings": 1024,
        "dropout": 0.0,
        "ffn": {"hidden_act": "relu"},
    },
}

# The GLU's 8d/3 as a multiple of 64, which tensor cores like; heads of 64, as in the paper.
GPT2_TOKENS = 50_257
SIZES["350m"] = {
    "vocab_size": GPT2_TOKENS,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "causal": True,
    "max_position_embeddings": 2048,
    "dropout": 0.0,
    "glu": {"intermediate_size": 2752},
}
SIZES["1b"] = {
    **SIZES["350m"],
    "hidden_size": 2048,
    "num_hidden_layers": 18,
    "num_attention_heads": 32,
    "glu": {"intermediate_size": 5504},
}
# Sizes that are not the paper's are for its own models and today's baseline.
_METHODS_OF_SIZE = dict.fromkeys(("350m", "1b"), ("t1", "t2", "llama"))

_SCALE_NORM = {"norm": "scale", "final_norm": "layer"}
# Every GAU layer of FLASH is attention and feed-forward in one: more layers for the same number of parameters.
_FLASH = {
    "lm": {**_SCALE_NORM, "num_hidden_layers": 10, "num_attention_heads": 1},
    "tiny": {**_SCALE_NORM, "num_hidden_layers": 7, "num_attention_heads": 1},
    # Pre-norm without a last norm: RoBERTa's model, made for post-norm, adds none.
    "mlm": {"num_hidden_layers": 24, "num_attention_heads": 1, "norm_first": True, "final_norm": "none"},
    "mlm-small": {"num_hidden_layers": 12, "num_attention_heads": 1, "norm_first": True, "final_norm": "none"},
}
# Transformer-XL's model: relative positions only, post-norm, an output bias.
_LONG_SHORT_CAUSAL = {
    "norm_first": False,
    "position_embedding": "none",
    "lm_head_bias": True,
    "init_scheme": "normal",
}
# The layers of Llama (Touvron et al. 2023): pre-norm, rotation, no absolute positions. Its RMSNorms have a gain, which
# in front of a projection is part of its weights; here they are those of T1 and T2, without it. In the LRA models a
# learned table is up to two thirds of all parameters: there it stays, as in T1 and T2.
_LLAMA = {"position_embedding": "none"}


def _informer(factor: int) -> dict[str, Any]:
    """The factor with which factor · ln T is about 128, the features of every other method in the LRA tables."""
    return {"mixer_options": {"informer": {"factor": factor}}}


# What a method changes in a size, or in all sizes of a family ("lra"), where the paper's model config for it differs.
REFINEMENTS: dict[str, dict[str, dict[str, Any]]] = {
    "performer": {size: {"mixer_options": {"performer": {"num_features": 64}}} for size in ("lm", "mlm")},
    "flash_quad": {**_FLASH, "lra": {"num_attention_heads": 1}},
    "flash": {**_FLASH, "lra": {**_SCALE_NORM, "num_attention_heads": 1}},
    "long_short": {"lm": _LONG_SHORT_CAUSAL, "tiny": _LONG_SHORT_CAUSAL},
    "llama": {
        **dict.fromkeys(("lm", "tiny", "350m", "1b"), _LLAMA),
        "mlm": {**_LLAMA, "norm_first": True},
    },
    "informer": {
        "lra-text": _informer(16),
        "lra-listops": _informer(17),
        "lra-retrieval": _informer(16),
        "lra-pathfinder": _informer(19),
        "lra-image": _informer(19),
    },
}


def list_presets() -> list[str]:
    """All preset names.

    >>> "t2-lm" in tn.list_presets()
    True
    """
    return [
        f"{method}-{size}"
        for method in METHODS
        for size in SIZES
        if _serves(method, SIZES[size]["causal"]) and method in _METHODS_OF_SIZE.get(size, METHODS)
    ]


def _serves(method: str, causal: bool) -> bool:
    """Whether all mixers of a method have the causal form, if that is asked for; each has the bidirectional one."""
    return not (causal and method in _NOT_CAUSAL)


def require_preset(name: str, causal: bool | None = None) -> None:
    """Raise for a name of no model; `causal` is what it shall be, or None for what its size says."""
    method, size = _parts(name)
    if method not in METHODS or size not in SIZES:
        raise ConfigError(f"unknown preset '{name}'", did_you_mean(name, list_presets()))
    if method not in _METHODS_OF_SIZE.get(size, METHODS):
        able = ", ".join(f"{other}-{size}" for other in _METHODS_OF_SIZE[size])
        raise ConfigError(f"no model '{name}': that size is not made for {method}", f"there are {able}")
    if not _serves(method, SIZES[size]["causal"] if causal is None else causal):
        able = ", ".join(other for other in METHODS if other not in _NOT_CAUSAL)
        raise ConfigError(f"no model '{name}': {method} has no causal form", f"those that have: {able}")


def preset_fields(name: str) -> ModelFields:
    """The fields of a preset, those that are unset filled in."""
    require_preset(name)
    values = _values(name, {})
    values.pop("num_labels", None)  # a field of every Hugging Face config
    model = ModelFields(**values)
    model.fill_unset()
    return model


def model_config(section: ModelSection, **fields: Any) -> TransNormerConfig:
    """The model of a run: its preset or `base`, what the section changes of it, and then `fields`."""
    fields = {**section.changes(), **fields}
    if section.preset is not None:
        return preset(section.preset, **fields)
    from transnormer.models.config import TransNormerConfig

    base: dict[str, Any] = dict(section.base or {})
    options = {**(base.pop("mixer_options", None) or {}), **(fields.pop("mixer_options", None) or {})}
    return TransNormerConfig(**{**base, **fields}, mixer_options=options)


def build_without_memory(section: ModelSection) -> None:
    """Raise what building the backbone of a run would."""
    config = model_config(section)
    from transnormer.models.backbone import TransNormerModel

    with without_memory():
        TransNormerModel(config)


@contextmanager
def without_memory() -> Iterator[None]:
    """A model that is built here has tensors with shapes and no content, and draws no random numbers."""
    import torch

    from transnormer.models.config import size_errors

    with torch.random.fork_rng(devices=[]), torch.device("meta"), size_errors("the model"):
        yield


def preset(name: str, **overrides: Any) -> TransNormerConfig:
    """The config behind a preset name, with any field of TransNormerConfig overridden.

    `mixer_options` are merged per mixer; the layer split follows `num_hidden_layers` unless `mixers` is given.

    >>> tn.preset("t2-tiny", num_hidden_layers=6).mixers
    ['diag', 'diag', 'diag', 'norm', 'norm', 'norm']
    """
    require_preset(name, overrides.get("causal"))
    from transnormer.models.config import TransNormerConfig, check_types, plain

    known = {field.name for field in fields(TransNormerConfig)} | {"num_labels"}
    for key in overrides:
        if key not in known:
            raise ConfigError(f"'{key}' is not a field of the model", did_you_mean(key, known))
    overrides = {key: plain(value) for key, value in overrides.items()}
    check_types(overrides)
    values = _values(name, overrides)
    from transnormer.mixers.registry import can_rotate

    mixers = overrides.get("mixers")
    if mixers and "position" not in overrides and values["position"] != "none" and not can_rotate(mixers):
        del values["position"]  # what a method's own mixers do says nothing of others
    return TransNormerConfig(**values)


def _parts(name: str) -> tuple[str, str]:
    """Method and size."""
    method, _, size = name.partition("-")
    return _OTHER_NAMES.get(method, method), size


def _values(name: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """The fields that a preset sets, with overrides."""
    method, size = _parts(name)
    refinements = REFINEMENTS.get(method, {})
    refined = refinements.get(size) or refinements.get(size.partition("-")[0]) or {}
    combined = {**METHODS[method], **SIZES[size], **refined}
    by_feed_forward = {kind: combined.pop(kind, {}) for kind in ("glu", "ffn")}
    values = {**combined, **by_feed_forward[METHODS[method]["feed_forward"]]}
    options = {mixer: dict(chosen) for mixer, chosen in values.pop("mixer_options", {}).items()}
    for mixer, chosen in (overrides.get("mixer_options") or {}).items():
        options[mixer] = {**options.get(mixer, {}), **chosen}
    # Another feed-forward layer or width brings its own default inner width.
    if {"feed_forward", "hidden_size"} & overrides.keys():
        values.pop("intermediate_size", None)
    values = {**values, **overrides, "mixer_options": options}
    if isinstance(values.get("mixers"), str):
        values["mixers"] = [values["mixers"]] * values["num_hidden_layers"]
    return values
