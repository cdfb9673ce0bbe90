"""The same run twice, with each mixer: the same losses and weights, whatever random numbers were drawn before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_run import losses, tiny_config, weights_hash

from transnormer.mixers.registry import list_mixers, mixer_class
from transnormer.train.loop import train


@pytest.mark.reliability("R16")
@pytest.mark.parametrize("mixer", list_mixers())
def test_the_same_run_twice_gives_the_same_bits(mixer: str, store: Path, tmp_path: Path) -> None:
    task = "causal_lm" if mixer_class(mixer).traits.causal else "masked_lm"
    config = tiny_config(store, task=task, model__mixers=[mixer, mixer], model__attention_dropout=0.1, train__steps=4)
    for seed, name in enumerate(("first", "second")):
        torch.manual_seed(seed)
        train(config, tmp_path / name, show=False)
    assert losses(tmp_path / "first") == losses(tmp_path / "second")
    assert weights_hash(tmp_path / "first") == weights_hash(tmp_path / "second")
    other = config.model_copy(update={"seed": config.seed + 1})
    train(other, tmp_path / "other", show=False)
    assert weights_hash(tmp_path / "other") != weights_hash(tmp_path / "first")
