"""Any settings of a model: it can be built, without memory and with the config that its dump gives, or is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from any_settings import key_text, value_text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transnormer.config.load import dump_config, load_config
from transnormer.config.model_fields import field_rules
from transnormer.errors import ConfigError
from transnormer.mixers.registry import list_mixers, mixer_options
from transnormer.models.presets import build_without_memory, list_presets

COUNTS = ["1", "2", "3", "8", "48", "64", "65", "512", "16777216", "16777217", "0", "-1", "1" + "0" * 20, "1.5", "null"]
OTHERS = ["0", "0.1", "1", "-0.1", "nan", "inf", "1e300", "true", "none", "null", "[]", "{}"]


def values_of(key: str) -> st.SearchStrategy[str]:
    """Most of them of the right kind, so that many settings are sound."""
    rule = field_rules()[key]
    if key == "mixers":
        return st.lists(st.sampled_from(list_mixers()), min_size=1, max_size=4).map(
            lambda names: f"[{','.join(names)}]"
        )
    if key == "mixer_options":
        return options
    if key == "num_hidden_layers":
        return st.sampled_from(["1", "2", "4", "12", "1001", "0", "x"])  # a thousand can be built, in seconds
    if rule.choices:
        return st.sampled_from([*rule.choices, *rule.choices, "other"])
    return st.sampled_from(COUNTS if rule.is_count else OTHERS)


options = st.sampled_from([(name, option) for name in list_mixers() for option in mixer_options(name)]).flatmap(
    lambda pair: st.sampled_from([*COUNTS, *OTHERS]).map(lambda value: f"{{{pair[0]}: {{{pair[1]}: {value}}}}}")
)
KEYS = [key for key, rule in field_rules().items() if rule.meaning]
of_a_model = st.one_of(
    st.sampled_from(list_presets()).map(lambda name: f"model.preset={name}"),
    st.sampled_from(KEYS).flatmap(lambda key: values_of(key).map(lambda value: f"model.{key}={value}")),
)
of_anything = st.tuples(key_text, value_text).map("=".join)


@pytest.mark.reliability("R13")
def test_any_settings_give_a_model_or_a_config_error(tmp_path: Path, sized: Callable[[int, int], int]) -> None:
    count, outcomes = sized(150, 1000), Counter[str]()

    @settings(max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=[*HealthCheck])
    @given(st.lists(st.one_of(of_a_model, of_a_model, of_a_model, of_anything), min_size=1, max_size=4))
    def try_one(overrides: list[str]) -> None:
        recipe = tmp_path / "mine.yaml"
        recipe.write_text("")
        try:
            config = load_config(recipe, overrides)
            build_without_memory(config.model)
        except ConfigError:
            outcomes["refused"] += 1
            return
        recipe.write_text(dump_config(config))
        assert load_config(recipe) == config
        outcomes["built"] += 1

    try_one()
    assert min(outcomes["built"], outcomes["refused"]) > count / 5, outcomes
