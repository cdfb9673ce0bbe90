"""Keys of older versions: refused with their new names, read in a run's own folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from transnormer.config.explain import explain
from transnormer.config.keys import all_keys
from transnormer.config.load import load_config, read_config
from transnormer.config.renamed import RENAMED, upgraded
from transnormer.errors import ConfigError


def test_an_old_key_on_the_command_line_names_the_new_one() -> None:
    with pytest.raises(ConfigError, match=r"train\.speed is now train\.execution, in override train\.speed=graph") as e:
        load_config("demo", ["train.speed=graph"])
    assert e.value.hint == "write train.execution=cuda_graph"


def test_an_old_key_in_a_recipe_names_the_new_one_and_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("train:\n  speed: compile\n")
    with pytest.raises(ConfigError, match=r"train\.speed is now train\.execution, in .*mine\.yaml, line 2") as e:
        load_config(path)
    assert e.value.hint == "write train.execution=compile"


@pytest.mark.parametrize(("before", "now"), [("graph", "cuda_graph"), ("eager", "eager"), ("auto", "auto")])
def test_an_old_key_in_a_run_folder_is_read(before: str, now: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"train:\n  steps: 7\n  speed: {before}\n")
    config = read_config(path)
    assert (config.train.execution, config.train.steps) == (now, 7)


def test_an_unknown_value_of_an_old_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("train: {speed: fast}\n")
    with pytest.raises(ConfigError, match=r"train\.execution: expected one of: .*; got 'fast'.*config\.yaml"):
        read_config(path)


@pytest.mark.parametrize("old", sorted(RENAMED))
def test_old_keys_are_gone_and_new_ones_are_there(old: str) -> None:
    assert old not in all_keys() or RENAMED[old].family
    assert RENAMED[old].now in all_keys()


def test_upgrading_leaves_the_tree_as_it_was() -> None:
    tree = {"train": {"speed": "graph", "steps": 3}, "seed": 1}
    assert upgraded(tree) == {"train": {"execution": "cuda_graph", "steps": 3}, "seed": 1}
    assert tree["train"] == {"speed": "graph", "steps": 3}
    assert upgraded(upgraded(tree)) == upgraded(tree)


@pytest.mark.parametrize(("old", "now"), [("train.speed", "train.execution"), ("protocol", "lra.protocol")])
def test_explain_knows_old_keys(old: str, now: str) -> None:
    with pytest.raises(ConfigError) as caught:
        explain(old)
    assert caught.value.hint == f"it is now '{now}'"
