"""AdamW: who decays, that clipping and update are torch's, and that its state survives by name."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from transnormer.config.schema import OptimSection
from transnormer.errors import CheckpointError
from transnormer.models.heads import TransNormerForCausalLM
from transnormer.models.presets import preset
from transnormer.step.adamw import AdamW, weight_decays
from transnormer.step.execution import Execution
from transnormer.step.schedules import beta1, learning_rate

EAGER = Execution("eager", torch.device("cpu"))


@pytest.fixture
def model() -> TransNormerForCausalLM:
    torch.manual_seed(0)
    return TransNormerForCausalLM(preset("t2-tiny", vocab_size=16, hidden_size=16, num_hidden_layers=2))


def names_by_decay(model: nn.Module, optim: OptimSection) -> dict[float, set[str]]:
    names = {parameter: name for name, parameter in model.named_parameters()}
    found: dict[float, set[str]] = {}
    for parameter, decay in weight_decays(model, optim).items():
        found.setdefault(decay, set()).add(names[parameter])
    return found


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


def test_gradients_of_micro_batches_add_up() -> None:
    two = nn.ParameterList([torch.zeros(3), torch.zeros(2)])
    adamw = AdamW(two, OptimSection(), EAGER)
    for add in (False, True):  # what was there before is forgotten
        adamw.take([torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 4.0])], add=add)
    adamw.take([torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 4.0])], add=False)
    adamw.take([torch.tensor([2.0, 0.0, 0.0]), torch.zeros(2)], add=True)
    assert adamw.gradients.tolist() == [3.0, 0.0, 0.0, 0.0, 4.0]
    assert adamw.norm() == 5.0


def update(adamw: AdamW, optim: OptimSection, step: int, go: bool = True) -> None:
    rates = (learning_rate(optim, 10, step), beta1(optim, 10, step))
    rate, first_beta = (torch.tensor(value, dtype=torch.float64) for value in rates)
    adamw.update(rate, first_beta, adamw.norm(), torch.tensor(go))


@pytest.mark.parametrize("clipping", [{"clip_norm": 0.1}, {"clip_value": 0.01}, {"clip_norm": None}])
def test_the_update_is_torchs(clipping: dict[str, float]) -> None:
    """Against torch.optim.AdamW and torch's clipping, with a rate and a beta1 that move at every step."""
    optim = OptimSection(weight_decay=0.1, schedule="one_cycle", warmup_steps=3, **clipping)
    torch.manual_seed(0)
    config = preset("t2-tiny", vocab_size=16, hidden_size=16, num_hidden_layers=2)
    ours, theirs = TransNormerForCausalLM(config), TransNormerForCausalLM(config)
    theirs.load_state_dict(ours.state_dict())
    decays = weight_decays(theirs, optim)
    torchs = torch.optim.AdamW(
        [{"params": [p], "weight_decay": decay} for p, decay in decays.items()], betas=optim.betas, eps=optim.eps
    )
    adamw = AdamW(ours, optim, EAGER)
    for step in range(5):
        gradients = [torch.randn_like(parameter) for parameter in decays]
        for parameter, gradient in zip(decays, gradients, strict=True):
            parameter.grad = gradient.clone()
        if optim.clip_norm is not None:
            norm = nn.utils.clip_grad_norm_(list(decays), optim.clip_norm)
        else:
            norm = nn.utils.get_total_norm(gradients)
        if optim.clip_value is not None:
            nn.utils.clip_grad_value_(list(decays), optim.clip_value)
        for group in torchs.param_groups:
            group["lr"] = learning_rate(optim, 10, step)
            group["betas"] = (beta1(optim, 10, step), optim.betas[1])
        torchs.step()
        adamw.take(gradients, add=False)
        torch.testing.assert_close(adamw.norm(), norm)
        update(adamw, optim, step)
        for parameter, twin in zip(theirs.parameters(), ours.parameters(), strict=True):
            torch.testing.assert_close(twin, parameter, rtol=1e-5, atol=1e-7)


def test_without_a_go_nothing_changes(model) -> None:
    adamw = AdamW(model, OptimSection(), EAGER)
    before = {name: value.clone() for name, value in [*model.state_dict().items(), *adamw.state().items()]}
    adamw.take([torch.full_like(parameter, torch.nan) for parameter in adamw.parameters], add=False)
    update(adamw, OptimSection(), 3, go=False)
    for name, value in [*model.state_dict().items(), *adamw.state().items()]:
        assert torch.equal(value, before[name]), name
    assert adamw.is_finite()
    update(adamw, OptimSection(), 3)
    assert not adamw.is_finite()


def train_a_little(model: nn.Module, adamw: AdamW, steps: range) -> None:
    optim = OptimSection(schedule="one_cycle", warmup_steps=3)
    for step in steps:
        torch.manual_seed(step)
        loss = model(input_ids=torch.randint(16, (2, 8))).logits.square().sum()
        adamw.take(torch.autograd.grad(loss, adamw.parameters), add=False)
        update(adamw, optim, step)


def test_state_by_name_continues_bit_for_bit(model) -> None:
    optim = OptimSection(weight_decay=0.1)
    adamw = AdamW(model, optim, EAGER)
    train_a_little(model, adamw, range(3))
    stored = load(save(adamw.state()))
    assert {key.rpartition(".")[2] for key in stored} == {"step", "exp_avg", "exp_avg_sq"}  # as torch's AdamW has it
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    train_a_little(model, adamw, range(3, 6))
    expected = {name: value.clone() for name, value in model.state_dict().items()}

    model.load_state_dict(weights)
    fresh = AdamW(model, optim, EAGER)
    fresh.load_state(stored)
    train_a_little(model, fresh, range(3, 6))
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected[name]), name


def test_state_of_another_model_is_refused(model) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        AdamW(model, OptimSection(), EAGER).load_state({"nowhere.exp_avg": torch.zeros(1)})
