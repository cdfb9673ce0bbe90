"""What a recipe says about CPUs: laid over it there, under what is typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from transnormer.config.load import load_config, resolve
from transnormer.errors import ConfigError


def test_text_is_learned_by_a_tiny_model_on_a_cpu() -> None:
    assert load_config("lm/text").model.preset == "t2-lm"
    small = resolve("lm/text", on_cpu=True)
    assert small.config.model.preset == "t2-tiny"
    assert small.set_by_cpu()["model.preset"] == "t2-tiny"
    assert small.config.train.steps * small.config.train.batch_size < 5000 * 32 / 4


def test_what_is_typed_counts_more() -> None:
    small = resolve("lm/text", ["model.preset=t1-lm", "train.steps=3000"], on_cpu=True)
    assert (small.config.model.preset, small.config.train.steps) == ("t1-lm", 3000)
    assert {"model.preset", "train.steps"}.isdisjoint(small.set_by_cpu())


def test_other_recipes_are_the_papers_everywhere() -> None:
    assert resolve("lm/wikitext103", on_cpu=True) == resolve("lm/wikitext103")


def test_a_recipe_that_extends_another_decides_over_it(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: lm/text\nmodel: {preset: vanilla-tiny}\n")
    assert resolve(mine, on_cpu=True).config.model.preset == "vanilla-tiny"


def test_a_mistake_in_it_is_told_on_every_machine(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("on_cpu: {train: {stepz: 3}}\n")
    for on_cpu in (False, True):
        with pytest.raises(ConfigError, match=r"train\.stepz: no such key, in .*line 1"):
            resolve(mine, on_cpu=on_cpu)


def test_apple_gpus_are_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match=r"mps.*not supported.*tested.*train\.device=cpu"):
        load_config("demo", ["train.device=mps"])
