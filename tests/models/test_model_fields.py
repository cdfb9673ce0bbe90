"""The model's fields are declared once: what a recipe may set is what TransNormerConfig has, under the same rules."""

from __future__ import annotations

from dataclasses import fields

import pytest

from transnormer.config.keys import all_keys
from transnormer.config.load import load_config
from transnormer.config.model_fields import ModelFields, field_rules
from transnormer.config.schema import ModelSection
from transnormer.errors import ConfigError
from transnormer.mixers.components.positions import ROTATIONS
from transnormer.models.config import TransNormerConfig


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
