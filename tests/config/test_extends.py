"""Recipes that extend others: deep merge, errors that name the chain, and the shipped ones as they always resolved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from transnormer.config.explain import explain_recipe, value_of
from transnormer.config.load import load_config, resolve
from transnormer.config.recipe import SHIPPED, list_recipes, read_recipe
from transnormer.config.renamed import upgraded
from transnormer.config.schema import RunConfig
from transnormer.errors import ConfigError

# Every recipe as commit 4afd138 resolved it, when each was written out in full.
BEFORE = json.loads((Path(__file__).parent / "recipes_of_4afd138.json").read_text())
# What was meant to change since then.
CHANGED = {
    "demo": {"train": {"log_every": 5}},  # gradient norms to draw
    "lm/wikitext103": {"train": {"micro_batch_size": None}},
    "lm/enwik8": {
        "model": {"dropout": 0.0, "num_hidden_layers": 12, "max_position_embeddings": 2048},
        "data": {"sequence_length": 2048},
        "optim": {"lr": 1e-3, "weight_decay": 0.1, "decay_all": False, "schedule": "cosine", "clip_norm": 1.0}
        | {"warmup_steps": 500, "final_lr_ratio": 0.01},
        "train": {
            "steps": 2750,
            "batch_size": 32,
            "eval_every": 550,
            "save_every": 550,
            "log_every": 50,
            "keep_last": 1,
        },
    },
}


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", BEFORE)
def test_shipped_recipes_resolve_as_they_did(name: str, monkeypatch) -> None:
    monkeypatch.chdir("/")  # the paths in a recipe are meant from where it is read
    tree = upgraded(BEFORE[name])
    for section, keys in CHANGED.get(name, {}).items():
        tree[section].update(keys)
    assert load_config(name) == RunConfig.model_validate(tree)


def test_no_shipped_recipe_is_lost() -> None:
    assert set(BEFORE) <= set(list_recipes())


def test_sections_merge_lists_and_values_replace_and_overrides_win(tmp_path: Path) -> None:
    write(
        tmp_path,
        "base.yaml",
        "seed: 3\nmodel:\n  mixers: [diag, norm]\n  mixer_options: {diag: {block_size: 32}, norm: {xnorm: layer}}\n"
        "optim: {lr: 1e-3, clip_norm: 1.0}\n",
    )
    child = write(
        tmp_path,
        "child.yaml",
        "extends: base.yaml\nmodel:\n  mixers: [norm, norm]\n  mixer_options: {norm: {xnorm: batch}}\n"
        "optim: {clip_norm: null}\n",
    )
    config = load_config(child, ["seed=5"])
    assert (config.seed, config.optim.lr, config.optim.clip_norm) == (5, 1e-3, None)
    assert config.model.mixers == ["norm", "norm"]
    assert config.model.mixer_options == {"diag": {"block_size": 32}, "norm": {"xnorm": "batch"}}


def test_a_recipe_extends_a_shipped_one_by_name_and_a_file_from_its_own_folder(tmp_path: Path, monkeypatch) -> None:
    write(tmp_path, "shared/base.yaml", "extends: lra/authors/image\nseed: 9\n")
    mine = write(tmp_path, "mine/deep/run.yaml", "extends: ../../shared/base.yaml\ntrain: {batch_size: 8}\n")
    monkeypatch.chdir("/")
    config = load_config(mine)
    assert (config.task, config.seed, config.train.batch_size) == ("lra/image", 9, 8)
    assert (config.model.dropout, config.optim.warmup_steps) == (0.2, 175)
    origins = {setting.key.path: setting.origin for setting in explain_recipe(mine)}
    assert origins["train.batch_size"] == f"{mine}, line 2"
    assert origins["seed"].endswith("shared/base.yaml, line 2")
    assert origins["model.dropout"].startswith("lra/authors/image, line ")
    assert origins["model.norm"].startswith("lra/authors/_s4_fork, line ")
    assert origins["optim.eps"] == "default"


def test_a_missing_parent_names_the_chain(tmp_path: Path) -> None:
    base = write(tmp_path, "base.yaml", "extends: lra/txt\n")
    child = write(tmp_path, "child.yaml", "extends: base.yaml\n")
    with pytest.raises(ConfigError) as caught:
        load_config(child)
    assert caught.value.message == f"{child} extends {base} extends lra/txt: no recipe 'lra/txt'"
    assert "lra/text" in caught.value.hint
    with pytest.raises(ConfigError, match=r"extends gone\.yaml: recipe file 'gone\.yaml' does not exist"):
        load_config(write(tmp_path, "other.yaml", "extends: gone.yaml\n"))


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_circle_names_the_chain(length: int, tmp_path: Path) -> None:
    for number in range(length):
        write(tmp_path, f"{number}.yaml", f"extends: ./{(number + 1) % length}.yaml\n")
    with pytest.raises(ConfigError, match=r"0\.yaml( extends .*\.yaml)* extends \./0\.yaml: .* in a circle"):
        load_config(tmp_path / "0.yaml")


@pytest.mark.parametrize("value", ["[demo, lra/text]", "3", "{a: b}"])
def test_extends_takes_one_name(value: str, tmp_path: Path) -> None:
    path = write(tmp_path, "mine.yaml", f"seed: 1\nextends: {value}\n")
    with pytest.raises(ConfigError, match=r"extends: expected the name or path of one recipe; got .*yaml, line 2"):
        load_config(path)


def test_faults_in_a_parent_are_named_there(tmp_path: Path) -> None:
    base = write(tmp_path, "base.yaml", "train:\n  stepz: 3\n")
    with pytest.raises(ConfigError, match=rf"train\.stepz: no such key, in {base}, line 2"):
        load_config(write(tmp_path, "child.yaml", "extends: base.yaml\n"))


@pytest.mark.parametrize("path", sorted(SHIPPED.rglob("*.yaml")), ids=lambda path: path.relative_to(SHIPPED).as_posix())
def test_shipped_recipes_hold_only_differences(path: Path) -> None:
    recipe = read_recipe(path)
    parent = recipe.tree.get("extends")
    below = RunConfig()
    if parent is not None:
        below = load_config(parent if parent in list_recipes() else path.parent / parent)
    config = load_config(path)
    own = [key for key, origin in resolve(path).origins.items() if origin.startswith(f"{path}, ")]
    assert own
    assert [key for key in own if value_of(config, key) == value_of(below, key)] == [], "repeats what is there already"
