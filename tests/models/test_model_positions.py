"""A rotation is what a mixer of the model can do: where none can, it is an error that names those that can."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from transnormer.cli.app import main
from transnormer.config.load import load_config
from transnormer.errors import ConfigError
from transnormer.mixers.registry import can_rotate, list_mixers
from transnormer.models.config import TransNormerConfig
from transnormer.models.presets import list_presets, preset
from transnormer.tasks.registry import build_task

ABLE = [name for name in list_mixers() if can_rotate([name])]


@pytest.mark.parametrize("mixer", [name for name in list_mixers() if name not in ABLE])
def test_a_rotation_that_no_mixer_can_do_is_refused(mixer: str) -> None:
    fields = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1, "causal": False, "mixers": [mixer]}
    assert TransNormerConfig(**fields).position == "none"
    assert not TransNormerConfig(**fields).rotates
    with pytest.raises(ConfigError, match=rf"{mixer} cannot rotate.*those that can rotate: {', '.join(ABLE)}"):
        TransNormerConfig(**fields, position="rope")


def test_one_layer_that_rotates_is_enough() -> None:
    mixed = preset("t2-tiny", mixers=["linear_elu", "linear_elu", "norm", "norm"])
    assert (mixed.position, mixed.rotates) == ("lrpe", True)
    assert preset("t2-tiny", mixers=["linear_elu"] * 4).position == "none"
    assert not preset("t2-tiny", position="none").rotates


@pytest.mark.parametrize("name", [name for name in list_presets() if name.endswith(("tiny", "lra-listops"))])
def test_the_field_of_a_preset_is_true(name: str) -> None:
    model = preset(name)
    assert model.rotates == (model.position != "none")


def test_it_is_refused_before_data_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRANSNORMER_CACHE", str(tmp_path / "cache"))
    changes = ["model.preset=linear_elu-lra-listops", "model.position=rope"]
    with pytest.raises(SystemExit) as exit_:
        main(["train", "lra/listops", "--out", str(tmp_path / "run"), *changes])
    assert exit_.value.code == 2
    assert "linear_elu cannot rotate" in capfd.readouterr().err
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(("method", "warned"), [("linear_elu", True), ("t2", False)])
def test_only_a_model_that_rotates_has_positions_without_a_table(
    method: str, warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TRANSNORMER_CACHE", str(tmp_path / "cache"))
    changes = [f"model.preset={method}-lra-listops", "model.position_embedding=none", "lra.limit_examples=2"]
    with caplog.at_level(logging.WARNING):
        build_task(load_config("lra/listops", changes)).build_model()
    assert ("has no positions" in caplog.text) == warned
