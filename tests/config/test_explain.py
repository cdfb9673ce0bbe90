"""What `explain` says is what the schema enforces."""

from __future__ import annotations

import pytest

from transnormer.config.explain import explain, explain_recipe
from transnormer.config.keys import all_keys, all_sections, nearest_key
from transnormer.config.load import load_config
from transnormer.config.schema import RunConfig
from transnormer.errors import ConfigError


def test_every_key_has_a_description_and_an_expectation() -> None:
    assert all(key.description and key.expects for key in all_keys().values())
    assert all(all_sections().values())


@pytest.mark.parametrize("key", [key for key in all_keys().values() if key.choices], ids=lambda key: key.path)
def test_the_choices_shown_are_the_choices_taken(key: object) -> None:
    for choice in key.choices:  # type: ignore[attr-defined]
        load_config("lra/text" if key.path.startswith("lra.") else "demo", [f"{key.path}='{choice}'"])  # type: ignore[attr-defined]


def test_expectations_in_words() -> None:
    keys = all_keys()
    assert keys["train.steps"].expects == "an integer > 0 and <= 1,000,000,000,000"
    assert keys["model.dropout"].expects == "a number >= 0 and < 1, or null"
    assert keys["optim.betas"].expects == "a list of 2 numbers >= 0 and < 1"
    assert keys["train.device"].expects == "one of: auto, cpu, cuda"
    assert keys["train.tensorboard"].expects == "true or false"


def test_explain_a_key_a_section_and_everything() -> None:
    assert [key.path for key in explain("optim.lr")] == ["optim.lr"]
    assert {key.path for key in explain("train")} == {path for path in all_keys() if path.startswith("train.")}
    assert len(explain("")) == len(all_keys())
    with pytest.raises(ConfigError, match="no such key") as caught:
        explain("optim.lrr")
    assert caught.value.hint == "did you mean 'optim.lr'?"


def test_explain_recipe_tells_who_set_what() -> None:
    settings = {setting.key.path: setting for setting in explain_recipe("lm/wikitext103", ["seed=7"])}
    assert settings["seed"].origin == "override seed=7"
    assert settings["seed"].value == 7
    assert settings["train.steps"].origin.startswith("lm/wikitext103, line ")
    assert settings["optim.lr"].origin == "default"
    assert settings["optim.lr"].value == RunConfig().optim.lr
    assert list(settings) == [path for path in all_keys() if not path.startswith(("lra.", "glue.", "recall."))]
    for recipe, foreign in (("lra/text", ("glue.", "recall.")), ("glue/rte", ("lra.", "recall."))):
        shown = [setting.key.path for setting in explain_recipe(recipe)]
        assert shown == [path for path in all_keys() if not path.startswith(foreign)]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("train.stepz", "train.steps"),
        ("batch_size", "train.batch_size"),
        ("data.seq_length", "data.sequence_length"),
        ("heads", "model.num_attention_heads"),
        ("optim.warmup", "optim.warmup_steps"),
    ],
)
def test_nearest_key(wrong: str, right: str) -> None:
    assert nearest_key(wrong) == f"did you mean '{right}'?"
