"""What a method is given in each set-up of the Long-Range Arena."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from transnormer.config.load import load_config
from transnormer.experiments.experiment import Selection
from transnormer.experiments.paper.lra import PAPER, TASKS, LongRangeArena
from transnormer.experiments.paper.lra_setups import COPIED, SETUPS
from transnormer.models.heads import TransNormerForSequenceClassification
from transnormer.models.presets import model_config, preset

TABLE = LongRangeArena()


def model_of(method: str, task: str, setup: str) -> TransNormerForSequenceClassification:
    settings = TABLE.settings(method, task, Selection([method], [task], [42], setup))
    config = load_config(TABLE.recipe(task, setup), settings)
    with torch.device("meta"):
        return TransNormerForSequenceClassification(model_config(config.model, causal=False))


@pytest.mark.parametrize("setup", [setup.name for setup in SETUPS])
def test_every_row_has_a_model_in_every_set_up(setup: str) -> None:
    assert set(TABLE.rows) == set(PAPER)
    for column in TABLE.columns(setup):
        for method in TABLE.rows:
            model_of(method, column, setup)


def test_copied_rows_run_as_skyformer_has_them() -> None:
    quirks = {"nystrom", "linformer", "informer", "performer", "reformer", "bigbird", "skyformer"}
    for method in COPIED:
        model = model_of(method, "text", "skyformer")
        options = model.config.options_of(model.config.mixers[0])
        assert options.get("skyformer_compat", False) == (method in quirks)
        assert model.classifier.dropout.p == 0
        assert [layer.feed_forward.dropout.p for layer in model.model.layers] == [0.1, 0.1]
    assert model_of("informer", "text", "skyformer").config.options_of("informer")["factor"] == 16


@pytest.mark.parametrize("method", ["t1", "t2", "cosformer", "long_short", "flash", "linear_elu"])
def test_the_others_stay_as_they_are(method: str) -> None:
    model = model_of(method, "text", "skyformer")
    assert model.classifier.dropout.p == 0.1
    inside = [layer.feed_forward.dropout.p for layer in model.model.layers if layer.feed_forward is not None]
    assert not any(inside)


def test_dropout_inside_a_feed_forward_layer_is_between_its_products() -> None:
    model = TransNormerForSequenceClassification(
        model_config(
            load_config("lra/text", ["model.preset=vanilla-lra-text", "model.activation_dropout=0.5"]).model,
            causal=False,
        )
    )
    ffn = model.model.layers[0].feed_forward
    seen: list[torch.Tensor] = []
    ffn.down_proj.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    nn.init.ones_(ffn.up_proj.bias)
    nn.init.zeros_(ffn.up_proj.weight)
    ffn(torch.zeros(1, 8, 64))
    share = (seen[0] == 0).float().mean().item()
    assert 0.4 < share < 0.6
    ffn.eval()(torch.zeros(1, 8, 64))
    assert (seen[1] != 0).all()


def test_long_is_pathfinder_for_two_hundred_epochs() -> None:
    assert TABLE.columns("long") == ("pathfinder",)
    config = load_config(TABLE.recipe("pathfinder", "long"))
    assert config.train.steps * config.train.batch_size == 200 * 160_000


@pytest.mark.parametrize("task", TASKS)
def test_a_rate_that_diverges_keeps_no_method_from_choosing(task: str) -> None:
    train = load_config(TABLE.recipe(task, "fair")).train
    assert train.nonfinite == "skip"
    assert train.nonfinite_limit >= train.steps


def test_the_page_of_arena_defines_every_set_up() -> None:
    page = (Path(__file__).parents[3] / "docs" / "lra.md").read_text(encoding="utf-8")
    for setup in SETUPS:
        assert f"| `{setup.name}`" in page
    assert len(TASKS) == 5
    norms = {method: preset(f"{method}-lra-text").norm for method in TABLE.rows}
    assert {method for method, norm in norms.items() if norm == "scale"} == {"flash"}
    assert {method for method, norm in norms.items() if norm == "rms"} == {"t1", "t2", "llama"}
    assert "RMSNorm in T1, T2 and llama, ScaleNorm in FLASH, LayerNorm in the others" in page
