"""`train.gradient_checkpointing`: layers run twice a step, the run is the same, and others keep their hash."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_run import tiny_config

from transnormer.config.load import config_hash
from transnormer.models.layers import Layer
from transnormer.train.loop import train

SHORT = {"train__steps": 3, "train__eval_every": 3, "train__save_every": 3}


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "final" / "model.safetensors")


def test_a_run_with_dropout_ends_with_the_same_weights(store, tmp_path: Path, monkeypatch) -> None:
    calls, forward = [0], Layer.forward

    def counted(*args):
        calls[0] += 1
        return forward(*args)

    monkeypatch.setattr(Layer, "forward", counted)
    made = []
    for name, checkpointing in (("plain", False), ("again", True)):
        calls[0] = 0
        train(tiny_config(store, train__gradient_checkpointing=checkpointing, **SHORT), tmp_path / name, show=False)
        made.append(calls[0])
    assert made[1] - made[0] == 3 * 2 * 2  # steps, micro-batches, layers
    plain, again = weights_of(tmp_path / "plain"), weights_of(tmp_path / "again")
    for name, expected in plain.items():
        torch.testing.assert_close(again[name], expected, msg=name)


@pytest.mark.slow
def test_a_compiled_run_with_it_ends_where_an_eager_one_does(store, tmp_path: Path) -> None:
    for name in ("eager", "compile"):
        changes = {"train__gradient_checkpointing": True, "train__execution": name, "model__dropout": 0.0, **SHORT}
        train(tiny_config(store, **changes), tmp_path / name, show=False)
    eager, compiled = weights_of(tmp_path / "eager"), weights_of(tmp_path / "compile")
    for name, expected in eager.items():
        torch.testing.assert_close(compiled[name], expected, atol=1e-4, rtol=1e-3, msg=name)


def test_runs_without_it_keep_their_hash(store) -> None:
    plain, off = tiny_config(store), tiny_config(store, train__gradient_checkpointing=False)
    assert "gradient_checkpointing" not in plain.model_dump()["train"]
    assert config_hash(plain) == config_hash(off)
    assert config_hash(plain) != config_hash(tiny_config(store, train__gradient_checkpointing=True))
