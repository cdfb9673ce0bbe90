"""Non-finite losses, gradients and weights: no update, no checkpoint, and stop, skip or rewind as the config says."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_run import STEPS, journal_lines, losses, stop_at, tiny_config, weights_hash

from transnormer.errors import NonFiniteError
from transnormer.step.training import TrainingStep
from transnormer.tasks.causal_lm import CausalLM
from transnormer.train import checkpoint
from transnormer.train.loop import resume, train


def poison(monkeypatch: pytest.MonkeyPatch, position: int, times: int) -> None:
    """Make the loss NaN for batches that hold a sample position, so many times."""
    train_batch, loss_sum = CausalLM.train_batch, CausalLM.loss_sum
    left = [times]

    def marked(self, positions):
        return {**train_batch(self, positions), "poisoned": torch.tensor(position in positions)}

    def poisoned(self, model, batch):
        loss = loss_sum(self, model, batch)
        if batch["poisoned"] and left[0] > 0:
            left[0] -= 1
            return loss * float("nan")
        return loss

    monkeypatch.setattr(CausalLM, "train_batch", marked)
    monkeypatch.setattr(CausalLM, "loss_sum", poisoned)


@pytest.mark.reliability("R6")
@pytest.mark.parametrize("position", [0, 28])
def test_non_finite_loss_stops_before_the_update(position: int, store, undisturbed, tmp_path, monkeypatch) -> None:
    poison(monkeypatch, position, times=1)
    with pytest.raises(NonFiniteError, match=f"step {position // 4 + 1}") as stopped:
        train(tiny_config(store), tmp_path / "run", show=False)
    assert stopped.value.exit_code == 4
    saved = checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints")
    assert bool(saved) == (position == 28)
    assert ("is finite" in stopped.value.hint) == bool(saved)
    assert ("no checkpoint" in stopped.value.hint) != bool(saved)
    [event] = journal_lines(tmp_path / "run", "nonfinite")
    assert event["step"] == position // 4 + 1
    assert event["action"] == "stop"
    for folder in checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints"):
        assert all(tensor.isfinite().all() for tensor in load_file(folder / "model.safetensors").values())
        assert all(tensor.isfinite().all() for tensor in load_file(folder / "optimizer.safetensors").values())
    resume(tmp_path / "run", show=False)  # the poison is gone: the same batch is finite now
    assert weights_hash(tmp_path / "run") == weights_hash(undisturbed)
    assert losses(tmp_path / "run") == losses(undisturbed)
    assert journal_lines(tmp_path / "run", "nonfinite") == [event]


@pytest.mark.reliability("R6")
def test_skip_leaves_out_the_update_and_gives_up_at_its_limit(store, undisturbed, tmp_path, monkeypatch) -> None:
    config = tiny_config(store, train__nonfinite="skip", train__nonfinite_limit=2)
    poison(monkeypatch, 17, times=1)
    result = train(config, tmp_path / "run", show=False)
    assert result["nonfinite"] == 1
    steps = [step for step, _ in losses(tmp_path / "run")]
    assert steps == [1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12]
    assert losses(tmp_path / "run")[:4] == losses(undisturbed)[:4]
    assert losses(tmp_path / "run")[4][1] != losses(undisturbed)[5][1]

    monkeypatch.undo()
    monkeypatch.setattr(CausalLM, "loss_sum", lambda self, model, batch: torch.tensor(math.nan, requires_grad=True))
    with pytest.raises(NonFiniteError, match="number 3 of this run"):
        train(config, tmp_path / "hopeless", show=False)
    actions = [line["action"] for line in journal_lines(tmp_path / "hopeless", "nonfinite")]
    assert actions == ["skip", "skip", "stop"]


@pytest.mark.reliability("R6")
@pytest.mark.parametrize("position", [2, 17])
def test_rewind_equals_a_run_without_that_batch(position: int, store, tmp_path, monkeypatch) -> None:
    """The batch of step 1 is met before any checkpoint, that of step 5 after the one of step 3."""
    config = tiny_config(store, train__nonfinite="rewind")
    poison(monkeypatch, position, times=99)
    train(config, tmp_path / "run", show=False)
    monkeypatch.undo()
    [event] = journal_lines(tmp_path / "run", "nonfinite")
    assert event["batch"] == position // 4

    feeds_of = TrainingStep._feeds_of
    monkeypatch.setattr(TrainingStep, "_feeds_of", lambda self, index: feeds_of(self, index + (index >= position // 4)))
    train(config, tmp_path / "without", show=False)
    assert weights_hash(tmp_path / "run") == weights_hash(tmp_path / "without")
    assert losses(tmp_path / "run") == losses(tmp_path / "without")


def test_a_gradient_that_is_not_finite_changes_no_weight(store, tmp_path, monkeypatch) -> None:
    """Though the loss is: that of the second micro-batch of the second step."""
    made, left = TrainingStep._gradients, [4]

    def poisoned(self, loss):
        gradients = made(self, loss)
        left[0] -= 1
        if left[0] == 0:
            gradients[0].fill_(math.nan)
        return gradients

    monkeypatch.setattr(TrainingStep, "_gradients", poisoned)
    train(tiny_config(store, train__nonfinite="skip", train__steps=4), tmp_path / "run", show=False)
    [event] = journal_lines(tmp_path / "run", "nonfinite")
    assert event["step"] == 2
    assert "gradient norm nan" in event["found"]
    weights = load_file(tmp_path / "run" / "final" / "model.safetensors")
    assert all(tensor.isfinite().all() for tensor in weights.values())


def corrupt_state_once(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Put a NaN into one weight after the update of a step, as a fault of the memory would."""
    advance = TrainingStep.advance
    left = [1]

    def corrupted(self, at, batches):
        outcomes = advance(self, at, batches)
        if at + 1 == step and left:
            left.pop()
            self.optimizer._first[0] = float("nan")
        return outcomes

    monkeypatch.setattr(TrainingStep, "advance", corrupted)


@pytest.mark.reliability("R6")
@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_non_finite_state_never_reaches_a_checkpoint(policy: str, store, undisturbed, tmp_path, monkeypatch) -> None:
    corrupt_state_once(monkeypatch, 6)
    with pytest.raises(NonFiniteError, match="weights"):
        train(tiny_config(store, train__nonfinite=policy), tmp_path / "run", show=False)
    kept = checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints")
    assert [path.name for path in kept] == ["step-00000003"]
    resume(tmp_path / "run", show=False)
    if policy == "stop":
        assert losses(tmp_path / "run") == losses(undisturbed)
        assert weights_hash(tmp_path / "run") == weights_hash(undisturbed)


@pytest.mark.reliability("R6")
def test_a_signal_does_not_save_non_finite_state(store: Path, tmp_path: Path, monkeypatch) -> None:
    corrupt_state_once(monkeypatch, 5)
    stop_at(monkeypatch, 5)
    with pytest.raises(NonFiniteError):
        train(tiny_config(store), tmp_path / "run", show=False)
    kept = checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints")
    assert [path.name for path in kept] == ["step-00000003"]


@pytest.mark.reliability("R6")
def test_rewind_recovers_from_non_finite_state(store: Path, tmp_path: Path, monkeypatch) -> None:
    corrupt_state_once(monkeypatch, 6)
    result = train(tiny_config(store, train__nonfinite="rewind"), tmp_path / "run", show=False)
    assert math.isfinite(result["metrics"]["loss"])
    assert [step for step, _ in losses(tmp_path / "run")] == list(range(1, STEPS + 1))


def test_rewind_sets_aside_a_checkpoint_that_broke_meanwhile(store: Path, tmp_path: Path, monkeypatch) -> None:
    poison(monkeypatch, 28, times=1)
    train_batch = CausalLM.train_batch

    def damage(self, positions):
        weights = tmp_path / "run" / "checkpoints" / "step-00000006" / "model.safetensors"
        if weights.is_file():
            weights.write_bytes(weights.read_bytes()[:-1])
        return train_batch(self, positions)

    monkeypatch.setattr(CausalLM, "train_batch", damage)
    train(tiny_config(store, train__nonfinite="rewind"), tmp_path / "run", show=False)
    assert "step-00000006" in journal_lines(tmp_path / "run", "quarantined")[0]["text"]
    assert [step for step, _ in losses(tmp_path / "run")] == list(range(1, STEPS + 1))
