"""TransNormerConfig: everything a model is, one field per decision; each ablation of the paper is a config."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from transnormer.config.model_fields import ModelFields, field_rules, field_types
from transnormer.errors import ConfigError, did_you_mean
from transnormer.mixers.registry import (
    build_mixer,
    can_rotate,
    check_options,
    check_probability,
    check_type,
    list_mixers,
    mixer_class,
    mixer_options,
)
from transnormer.models.hub import AUTO_MAP, write_loader


@strict
class TransNormerConfig(ModelFields, PreTrainedConfig):
    """Configuration of every model here. `mixers` names one mixer per layer; unset, it is L//2 `diag` then `norm`.

    `mixer_options` has their options by name, `{"diag": {"block_size": 128}}`. `transnormer explain model` says
    what other fields mean, and `tn.preset` gives those of the paper's models.

    >>> tn.TransNormerConfig(num_hidden_layers=4, hidden_size=64, num_attention_heads=4).mixers
    ['diag', 'diag', 'norm', 'norm']
    """

    model_type = "transnormer"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 - the Trainer adds a list to it

    def __post_init__(self, **kwargs: Any) -> None:
        for name, value in vars(self).items():
            setattr(self, name, plain(value))
        check_types(vars(self))
        self.fill_unset()
        if self.position is None:
            self.position = "lrpe" if can_rotate(self.mixers or ()) else "none"
        super().__post_init__(**{**kwargs, "auto_map": dict(AUTO_MAP)})
        self._check()

    def save_pretrained(self, save_directory: str | os.PathLike[str], push_to_hub: bool = False, **kwargs: Any) -> None:
        """Write config.json and what it names: the file by which transformers finds our classes."""
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        write_loader(folder)
        super().save_pretrained(save_directory, push_to_hub, **kwargs)

    @classmethod
    def get_config_dict(
        cls, pretrained_model_name_or_path: str | os.PathLike[str], **kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """What config.json holds. Of another architecture it is refused: transformers would give it random weights."""
        found, unused = super().get_config_dict(pretrained_model_name_or_path, **kwargs)
        if found and "model_type" not in found:
            raise ConfigError(
                f"{pretrained_model_name_or_path} names no model_type, which is '{cls.model_type}' in models of ours",
                "save it with save_pretrained; for a dictionary of fields there is TransNormerConfig(**fields)",
            )
        if found:
            _require_ours(found, str(pretrained_model_name_or_path))
        return found, unused

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """The config of a dictionary, as config.json holds it or made by hand; that of another model is refused."""
        _require_ours(config_dict, "the dictionary")
        return super().from_dict(config_dict, **kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoConfig") -> None:
        """Nothing: transformers would copy this source file into what is saved, which names the package instead."""

    def _check(self) -> None:
        for field, rule in field_rules().items():
            value = getattr(self, field)
            if rule.choices and value not in rule.choices:
                raise ConfigError(f"{field}: unknown value '{value}'", did_you_mean(str(value), rule.choices))
            if rule.is_probability and value is not None:
                check_probability(field, value)
        for field in (*(name for name, rule in field_rules().items() if rule.is_count), "num_labels"):
            if getattr(self, field) < 1:
                raise ConfigError(f"{field} must be at least 1, got {getattr(self, field)}")
        if not 0 <= self.initializer_range < math.inf:
            raise ConfigError(f"initializer_range must be a finite number from 0 on, got {self.initializer_range}")
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}",
                "choose a number of heads that divides the width",
            )
        if self.causal and "batch" in (self.norm, self.final_norm):
            raise ConfigError("norm: batch statistics see later tokens", "choose another norm for a causal model")
        assert self.mixers is not None
        assert self.mixer_options is not None
        if len(self.mixers) != self.num_hidden_layers:
            raise ConfigError(f"mixers names {len(self.mixers)} layers, num_hidden_layers is {self.num_hidden_layers}")
        for name in [*self.mixers, *self.mixer_options]:
            mixer_class(name)
        for name, options in self.mixer_options.items():
            check_options(name, options)
        if self.position != "none" and not can_rotate(self.mixers):
            able = [name for name in list_mixers() if can_rotate([name])]
            raise ConfigError(
                f"position: {self.position}: {', '.join(dict.fromkeys(self.mixers))} cannot rotate queries and keys",
                f"position: none; those that can rotate: {', '.join(able)}",
            )
        # Only a mixer knows what its options may be, so each is built as the layers will build it; without memory, and
        # with the random numbers that some of them draw left as they were.
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            for name in dict.fromkeys(self.mixers):
                with size_errors(name):
                    build_mixer(
                        name,
                        hidden_size=self.hidden_size,
                        num_heads=self.num_attention_heads,
                        causal=self.causal,
                        max_length=self.max_position_embeddings,
                        **self.options_of(name),
                    )

    @property
    def layer_types(self) -> list[str]:
        """Per layer, transformers' own name of the cache it needs: generate() builds the decode state from this."""
        assert self.mixers is not None
        return [mixer_class(name).traits.cache or "full_attention" for name in self.mixers]

    @property
    def attention_chunk_size(self) -> int:
        """The block size of DiagAttention, under the name that transformers' cache asks for."""
        return self.options_of("diag")["block_size"]

    @property
    def sliding_window(self) -> int | None:
        """The same for layers that keep a recurrent state beside their keys (FLASH, pairs of attentions)."""
        assert self.mixers is not None
        windows = [
            mixer_class(name).window(self.options_of(name))
            for name in set(self.mixers)
            if mixer_class(name).traits.cache == "hybrid_sliding"
        ]
        return max((window for window in windows if window is not None), default=None)

    @property
    def rotates(self) -> bool:
        """Whether a layer rotates queries and keys by their positions."""
        return any(self.options_of(name).get("position", "none") != "none" for name in self.mixers or ())

    def options_of(self, mixer: str) -> dict[str, Any]:
        """All options of a mixer in this model: its defaults, the model-wide ones it understands, then its own."""
        assert self.mixer_options is not None
        model_wide = {"position": self.position, "dropout": self.attention_dropout}
        defaults = mixer_options(mixer)
        return {
            **defaults,
            **{key: value for key, value in model_wide.items() if key in defaults},
            **self.mixer_options.get(mixer, {}),
        }


def _require_ours(found: Mapping[str, Any], where: str) -> None:
    """Raise for what names another type of model; a dictionary made by hand need not name one."""
    if (kind := found.get("model_type", TransNormerConfig.model_type)) != TransNormerConfig.model_type:
        raise ConfigError(
            f"{where} holds a model of type '{kind}', not of type '{TransNormerConfig.model_type}'",
            "transformers' own classes load it: AutoModelForCausalLM.from_pretrained and the like",
        )


@contextmanager
def size_errors(what: str) -> Iterator[None]:
    """Turn what torch and Python say of a number that no tensor can have as its size into a ConfigError."""
    try:
        yield
    except (RuntimeError, OverflowError, MemoryError) as error:
        words = str(error).strip() or "out of memory"
        raise ConfigError(f"{what} cannot be built: {words.splitlines()[0]}", "choose smaller sizes") from error


def plain(value: Any) -> Any:
    """A value as a config file holds it: numbers of numpy as Python's, tuples as lists."""
    if isinstance(value, np.generic):
        return value.item()
    return list(value) if isinstance(value, tuple) else value


def check_types(fields: Mapping[str, Any]) -> None:
    """Raise for a field of a model whose value is not of its type, or larger than that of any model."""
    for name, value in fields.items():
        if name in field_types():
            check_type(name, value, field_types()[name])
        rule = field_rules().get(name)
        if rule and rule.is_count and value is not None and value > rule.at_most:
            raise ConfigError(f"{name} must be at most {rule.at_most:,}, got {value}")
