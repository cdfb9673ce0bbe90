"""AdamW: who decays, how gradients are clipped, and that its state survives by parameter name."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from transnormer.config.schema import OptimSection
from transnormer.errors import CheckpointError
from transnormer.models.heads import TransNormerForCausalLM
from transnormer.models.presets import preset
from transnormer.train.optim import (
    build_adamw,
    clip_gradients,
    decay_groups,
    follow_schedule,
    load_optimizer_tensors,
    optimizer_tensors,
)


@pytest.fixture
def model() -> TransNormerForCausalLM:
    torch.manual_seed(0)
    return TransNormerForCausalLM(preset("t2-tiny", vocab_size=16, hidden_size=16, num_hidden_layers=2))


def names_by_decay(model: nn.Module, optim: OptimSection) -> dict[float, set[str]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {g["weight_decay"]: {names[id(p)] for p in g["params"]} for g in decay_groups(model, optim)}


def test_only_matrices_decay(model) -> None:
    groups = names_by_decay(model, OptimSection(weight_decay=0.1))
    assert groups[0.1] | groups[0.0] == {name for name, _ in model.named_parameters()}
    assert any("q_proj.weight" in name for name in groups[0.1])
    assert not any("norm" in name.split(".")[-2] or name.endswith("bias") or "embed" in name for name in groups[0.1])
    assert any("embed" in name for name in groups[0.0])


def test_decay_all_leaves_no_parameter_out(model) -> None:
    assert names_by_decay(model, OptimSection(weight_decay=0.1, decay_all=True)) == {
        0.1: {name for name, _ in model.named_parameters()}
    }


def test_an_embedding_tied_to_the_output_does_not_decay() -> None:
    tied = nn.ModuleDict({"out": nn.Linear(4, 8, bias=False), "embed": nn.Embedding(8, 4)})
    tied["out"].weight = tied["embed"].weight
    assert names_by_decay(tied, OptimSection(weight_decay=0.1)) == {0.0: {"out.weight"}}


@pytest.mark.parametrize("optim", [OptimSection(clip_norm=0.5), OptimSection(clip_value=0.01), OptimSection()])
def test_clipping(optim: OptimSection) -> None:
    parameters = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2))]
    parameters[0].grad, parameters[1].grad = torch.tensor([3.0, 0.0, -0.001]), torch.tensor([0.0, 4.0])
    before = torch.cat([parameter.grad for parameter in parameters]).clone()
    norm = clip_gradients(parameters, optim)
    after = torch.cat([parameter.grad for parameter in parameters])
    torch.testing.assert_close(norm, torch.tensor(5.0), rtol=1e-6, atol=0)
    expected = before
    if optim.clip_norm:
        expected = before * (optim.clip_norm / 5.0)
    if optim.clip_value:
        expected = before.clamp(-optim.clip_value, optim.clip_value)
    torch.testing.assert_close(after, expected, rtol=1e-5, atol=0)


def train_a_little(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    optim = OptimSection(schedule="one_cycle", warmup_steps=3)
    for step in steps:
        torch.manual_seed(step)
        model(input_ids=torch.randint(16, (2, 8))).logits.square().sum().backward()
        follow_schedule(optimizer, optim, 10, step)
        optimizer.step()
        optimizer.zero_grad()


def test_state_by_name_continues_bit_for_bit(model) -> None:
    optim = OptimSection(weight_decay=0.1)
    optimizer = build_adamw(model, optim)
    train_a_little(model, optimizer, range(3))
    stored = load(save(optimizer_tensors(optimizer, model)))
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    train_a_little(model, optimizer, range(3, 6))
    expected = {name: value.clone() for name, value in model.state_dict().items()}

    model.load_state_dict(weights)
    fresh = build_adamw(model, optim)
    load_optimizer_tensors(fresh, model, stored)
    train_a_little(model, fresh, range(3, 6))
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected[name]), name


def test_state_of_another_model_is_refused(model) -> None:
    optimizer = build_adamw(model, OptimSection())
    with pytest.raises(CheckpointError, match="nowhere"):
        load_optimizer_tensors(optimizer, model, {"nowhere.exp_avg": torch.zeros(1)})
