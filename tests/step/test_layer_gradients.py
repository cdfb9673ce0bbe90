"""The gradient norm of each layer in the journal: what autograd gives, in every execution, and only where asked for."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tiny_run import journal_lines, tiny_config, weights_hash

from transnormer.config.load import config_hash
from transnormer.step.layer_groups import layer_groups
from transnormer.tasks.registry import build_task
from transnormer.train import learner as learner_module
from transnormer.train.loop import resume, train

LAYERS = ["embedding", "layer 0", "layer 1"]  # the head is the embedding, and these norms have no weight


def test_groups_go_from_the_input_to_the_output() -> None:
    names = [
        "lm_head.dense.weight",
        *(f"model.layers.{number}.mixer.q_proj.weight" for number in (10, 2)),
        "model.embed_norm.bias",
        "model.layers.2.mixer_norm.bias",
        "model.embed_tokens.weight",
        "model.norm.weight",
    ]
    assert list(layer_groups(names).items()) == [
        ("embedding", [3, 5]),
        ("layer 2", [2, 4]),
        ("layer 10", [1]),
        ("head", [0, 6]),
    ]


def norms_of_first_step(config) -> dict[str, float]:
    """By autograd alone: gradients of the mean loss of the first batch on the seeded model."""
    task = build_task(config)
    torch.manual_seed(config.seed)
    model = task.build_model().train()
    batch = task.train_batch(range(config.train.batch_size))
    (task.loss_sum(model, batch) / task.targets_in(batch)).backward()
    layers = [*model.model.layers]
    norms = [
        math.sqrt(sum(float(p.grad.double().square().sum()) for p in m.parameters()))
        for m in (model.model.embed_tokens, *layers)
    ]
    return dict(zip(LAYERS, norms, strict=True))


@pytest.mark.parametrize("execution", ["eager", "cuda_graph"])
@pytest.mark.parametrize("micro", [None, 2])
def test_the_journal_has_the_norms_that_autograd_gives(store, execution, micro, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(learner_module, "choose_execution", lambda *_: execution)
    changes = {"train__micro_batch_size": micro, "train__log_every": 2, "train__steps": 5, "model__dropout": 0.0}
    config = tiny_config(store, train__log_layer_gradients=True, **changes)
    expected = norms_of_first_step(config)
    train(config.model_copy(update={"train": config.train.model_copy(update={"log_every": 1})}), tmp_path / "1", show=0)
    first = journal_lines(tmp_path / "1", "train")[0]
    assert first["layer_grad_norms"] == pytest.approx(expected, rel=1e-5)
    train(config, tmp_path / "2", show=False)
    lines = journal_lines(tmp_path / "2", "train")
    assert [line["step"] for line in lines] == [2, 4, 5]
    for line in lines:
        assert list(line["layer_grad_norms"]) == LAYERS
        assert math.hypot(*line["layer_grad_norms"].values()) == pytest.approx(line["grad_norm"], rel=1e-5)


def test_they_change_nothing_else(store, tmp_path: Path) -> None:
    plain, logging = tiny_config(store), tiny_config(store, train__log_layer_gradients=True)
    train(plain, tmp_path / "plain", show=False)
    train(logging, tmp_path / "logging", show=False)
    assert weights_hash(tmp_path / "plain") == weights_hash(tmp_path / "logging")
    assert not any("layer_grad_norms" in line for line in journal_lines(tmp_path / "plain", "train"))
    assert "log_layer_gradients" not in plain.model_dump()["train"]  # or earlier runs had another hash
    assert config_hash(plain) != config_hash(logging)


def test_a_run_may_begin_to_log_them_when_it_is_resumed(store, tmp_path: Path) -> None:
    train(tiny_config(store, train__steps=6), tmp_path, show=False)
    resume(tmp_path, ["train.log_layer_gradients=true", "train.steps=8"], show=False)
    assert ["layer_grad_norms" in line for line in journal_lines(tmp_path, "train")] == [False] * 6 + [True] * 2
