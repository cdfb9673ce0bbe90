"""The model's fields are declared once: what a recipe may set is what TransNormerConfig has, under the same rules."""

from __future__ import annotations

from dataclasses import fields
from functools import partial

import pytest

from transnormer.config.keys import all_keys
from transnormer.config.load import load_config
from transnormer.config.model_fields import ModelFields, field_rules
from transnormer.config.schema import ModelSection
from transnormer.errors import ConfigError
from transnormer.mixers.components.positions import ROTATIONS
from transnormer.models.config import TransNormerConfig
from transnormer.models.presets import build_without_memory, preset


def test_every_key_of_the_model_is_a_field_with_its_meaning() -> None:
    keys = ModelSection.model_fields.keys() - {"preset", "init", "base"}  # which say where the others come from
    assert keys == {name for name, rule in field_rules().items() if rule.meaning}
    assert keys < {field.name for field in fields(ModelFields)}
    for name in keys:
        assert all_keys()[f"model.{name}"].description == field_rules()[name].meaning


@pytest.mark.parametrize("field", fields(ModelFields), ids=lambda field: field.name)
def test_a_config_has_every_field_at_its_default(field) -> None:
    value = getattr(TransNormerConfig(), field.name)
    assert field.default is None or value == field.default


@pytest.mark.parametrize(("name", "rule"), field_rules().items(), ids=list(field_rules()))
def test_both_refuse_what_the_rule_forbids(name: str, rule) -> None:
    bad = 0 if rule.is_count else 1.0 if rule.is_probability else "no_such_choice"
    with pytest.raises(ConfigError, match=name):
        TransNormerConfig(**{name: bad})
    if rule.meaning:
        with pytest.raises(ConfigError, match=rf"model\.{name}: expected"):
            load_config("demo", [f"model.{name}={bad}"])


def test_rotations_are_those_that_mixers_know() -> None:
    assert field_rules()["position"].choices == ROTATIONS


@pytest.mark.parametrize("field", ["num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size"])
def test_sizes_beyond_any_model_are_refused_before_anything_is_made(field: str) -> None:
    for make in (TransNormerConfig, partial(preset, "t2-tiny"), partial(preset, "vanilla-tiny")):
        with pytest.raises(ConfigError, match=f"{field} must be at most"):
            make(**{field: 2**63})


def test_so_are_options_of_mixers() -> None:
    with pytest.raises(ConfigError, match="'block_size' must be at most"):
        preset("t2-tiny", mixer_options={"diag": {"block_size": 10**20}})


def test_a_model_that_fits_no_machine_is_built_without_memory() -> None:
    build_without_memory(ModelSection(preset="t2-tiny", hidden_size=2**20, num_hidden_layers=2))
    with pytest.raises(ConfigError, match="not a multiple"):
        build_without_memory(ModelSection(preset="t2-tiny", hidden_size=2**20 + 1))
