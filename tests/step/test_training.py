"""One step in all its executions: on the CPU with the batches of a graph against eager ones, as a graph on a GPU."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from lra_files import SOURCES, lra_config
from safetensors.torch import load_file
from tiny_run import evaluations, journal_lines, losses, tiny_config, weights_hash

from transnormer.errors import ConfigError, Preempted, TransNormerError
from transnormer.step.execution import CannotRun, Execution
from transnormer.step.training import TrainingStep
from transnormer.tasks import token_windows
from transnormer.tasks.lra import LongRangeArena
from transnormer.train import learner as learner_module
from transnormer.train.loop import evaluate_run, resume, train

STILL = {"model__dropout": 0.0, "model__attention_dropout": 0.0}
WHOLE = {"train__micro_batch_size": None, "train__steps": 8, "train__log_every": 4, "train__eval_every": 4}


@pytest.fixture
def graph_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the path of train.execution=cuda_graph; without a GPU the step is neither compiled nor recorded."""
    monkeypatch.setattr(learner_module, "choose_execution", lambda *_: "cuda_graph")


def norms(name: str) -> dict[str, Any]:
    """The settings of a model all of whose norms are of one kind."""
    return {"model__norm": name, "model__mixer_options": {"norm": {"xnorm": name}}}


def same_run(ours: Path, plain: Path, rel: float) -> None:
    for (step, loss), (same_step, expected) in zip(losses(ours), losses(plain), strict=True):
        assert step == same_step
        assert loss == pytest.approx(expected, rel=rel)
    for (step, metrics), (same_step, expected) in zip(evaluations(ours), evaluations(plain), strict=True):
        assert step == same_step
        assert metrics == pytest.approx(expected, rel=rel)
    ours_state, plain_state = (
        load_file(max((run / "checkpoints").iterdir()) / "optimizer.safetensors") for run in (ours, plain)
    )
    assert ours_state.keys() == plain_state.keys()
    norms_of: dict[str, list[float]] = {}
    for name, tensor in plain_state.items():
        norms_of.setdefault(name.rpartition(".")[2], []).append(float(tensor.norm()))
    # By norm, not number by number: a unit of the classifier that noise switches on or off has another gradient. And as
    # far as it is more than noise: that of a bias in front of a BatchNorm is zero but for rounding.
    for name, tensor in plain_state.items():
        noise = 1e-6 * max(norms_of[name.rpartition(".")[2]])
        assert float((ours_state[name] - tensor).norm()) <= 50 * rel * float(tensor.norm()) + noise, name


@pytest.mark.parametrize(("task", "norm"), [*((task, "rms") for task in SOURCES), ("lra/listops", "batch")])
def test_it_learns_what_the_loop_learns(lra_store, task: str, norm: str, tmp_path: Path, monkeypatch) -> None:
    config = lra_config(task, lra_store(task), optim__clip_norm=0.5, **norms(norm), **STILL, **WHOLE)
    plain = train(config, tmp_path / "plain", show=False)
    assert plain["execution"] == "eager"
    monkeypatch.setattr(learner_module, "choose_execution", lambda *_: "cuda_graph")
    result = train(config, tmp_path / "ours", show=False)
    assert result["execution"] == "cuda_graph"
    assert len(journal_lines(tmp_path / "ours", "prepared")) == 1
    assert result["tokens"] == plain["tokens"]
    assert result["test"]["metrics"] == pytest.approx(plain["test"]["metrics"], rel=1e-4)
    same_run(tmp_path / "ours", tmp_path / "plain", rel=1e-4)


@pytest.mark.parametrize("norm", ["rms", "batch"])
def test_it_resumes_bit_for_bit(lra_store, norm: str, tmp_path: Path, graph_on_cpu, monkeypatch) -> None:
    config = lra_config("lra/listops", lra_store("lra/listops"), **norms(norm), **WHOLE)  # with dropout
    train(config, tmp_path / "whole", show=False)
    advance = TrainingStep.advance

    def interrupted(self, step, batches):
        if step <= 4 < step + len(batches):
            os.kill(os.getpid(), signal.SIGTERM)
        return advance(self, step, batches)

    monkeypatch.setattr(TrainingStep, "advance", interrupted)
    with pytest.raises(Preempted, match="after step 6"):
        train(config, tmp_path / "run", show=False)
    monkeypatch.setattr(TrainingStep, "advance", advance)
    resume(tmp_path / "run", show=False)
    assert weights_hash(tmp_path / "run") == weights_hash(tmp_path / "whole")
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


@pytest.mark.parametrize("action", ["skip", "rewind"])
def test_a_batch_that_is_not_finite_changes_no_weight(
    lra_store, action: str, tmp_path: Path, graph_on_cpu, monkeypatch
) -> None:
    """The third batch gives NaN: the device leaves it and what follows in its stride alone, the loop then goes on."""
    config = lra_config(
        "lra/text", lra_store("lra/text"), train__nonfinite=action, **STILL, **{**WHOLE, "train__steps": 4}
    )
    arena = LongRangeArena(config)
    [bad] = arena.rows(range(8, 9)).tolist()
    beginning = torch.from_numpy(arena.examples("train").sequence(bad)[:3].astype("int64"))  # no two texts share it
    loss_sum = LongRangeArena.loss_sum

    def poisoned(self, model, batch):
        is_bad = (batch["input_ids"][:, :3] == beginning).all(dim=1).any()
        return loss_sum(self, model, batch) * torch.where(is_bad, float("nan"), 1.0)

    monkeypatch.setattr(LongRangeArena, "loss_sum", poisoned)
    result = train(config, tmp_path / "run", show=False)
    [event] = journal_lines(tmp_path / "run", "nonfinite")
    assert (event["step"], event["batch"], event["action"]) == (3, 2, action)
    assert result["steps"] == 4
    weights = load_file(tmp_path / "run" / "final" / "model.safetensors")
    assert all(tensor.isfinite().all() for tensor in weights.values())


def test_what_a_graph_cannot_do_is_said(lra_store, tmp_path: Path) -> None:
    config = lra_config("lra/listops", lra_store("lra/listops"), **{**WHOLE, "train__execution": "cuda_graph"})
    with pytest.raises(ConfigError, match="needs a CUDA device"):
        train(config, tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()


def test_a_run_made_as_a_graph_is_scored_op_by_op(lra_store, tmp_path: Path, monkeypatch) -> None:
    """Where there is no GPU, too, and with the same numbers."""
    config = lra_config("lra/text", lra_store("lra/text"), **{**WHOLE, "train__execution": "cuda_graph"})
    with monkeypatch.context() as as_on_a_gpu:
        as_on_a_gpu.setattr(learner_module, "choose_execution", lambda *_: "cuda_graph")
        result = train(config, tmp_path, show=False)
    scored = evaluate_run(tmp_path, "test", "best")
    assert scored["metrics"] == pytest.approx(result["test"]["metrics"], rel=1e-5)


def test_a_step_that_cannot_be_compiled_says_what_to_do(lra_store, tmp_path: Path, graph_on_cpu, monkeypatch) -> None:
    def broken(self: TrainingStep) -> None:
        raise CannotRun("does not compile: no compiler here")

    monkeypatch.setattr(TrainingStep, "prepare", broken)
    config = lra_config("lra/listops", lra_store("lra/listops"), **WHOLE)
    with pytest.raises(TransNormerError, match=r"execution=cuda_graph: does not compile: no compiler") as caught:
        train(config, tmp_path / "run", show=False)
    assert "train.execution=eager" in caught.value.hint


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("task", "norm"),
    [("lra/listops", "rms"), ("lra/retrieval", "rms"), ("lra/image", "rms"), ("lra/listops", "batch")],
)
def test_on_a_gpu_the_graph_learns_what_single_ops_learn(lra_store, task: str, norm: str, tmp_path: Path) -> None:
    for execution in ("eager", "cuda_graph"):
        config = lra_config(
            task,
            lra_store(task),
            **STILL,
            **norms(norm),
            train__execution=execution,
            **{**WHOLE, "train__device": "cuda", "train__precision": "float32"},
        )
        assert train(config, tmp_path / execution, show=False)["execution"] == execution
    same_run(tmp_path / "cuda_graph", tmp_path / "eager", rel=2e-3)


@pytest.mark.parametrize("task", ["causal_lm", "masked_lm"])
def test_language_models_take_the_same_step(store: Path, task: str, tmp_path: Path, monkeypatch) -> None:
    config = tiny_config(store, task=task, train__micro_batch_size=None, train__log_every=3, model__dropout=0.0)
    plain = train(config, tmp_path / "plain", show=False)
    monkeypatch.setattr(learner_module, "choose_execution", lambda *_: "cuda_graph")
    result = train(config, tmp_path / "ours", show=False)
    assert (result["execution"], result["tokens"]) == ("cuda_graph", plain["tokens"])
    same_run(tmp_path / "ours", tmp_path / "plain", rel=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("task", ["causal_lm", "masked_lm"])
def test_on_a_gpu_language_models_learn_what_single_ops_learn(store: Path, task: str, tmp_path: Path) -> None:
    still = {"task": task, "model__dropout": 0.0, "train__micro_batch_size": None}
    for execution in ("eager", "cuda_graph"):
        where = {"train__execution": execution, "train__device": "cuda", "train__precision": "float32"}
        config = tiny_config(store, **still, **where)
        assert train(config, tmp_path / execution, show=False)["execution"] == execution
    same_run(tmp_path / "cuda_graph", tmp_path / "eager", rel=2e-3)


@pytest.mark.parametrize("task", ["lra/listops", "lra/retrieval", "causal_lm", "masked_lm"])
def test_step_and_score_are_one_graph_to_a_compiler(
    lra_store, store: Path, task: str, tmp_path: Path, graph_on_cpu, monkeypatch
) -> None:
    """What a GPU compiles: without a break, and with the same result."""
    still = {**STILL, "train__steps": 4, "train__log_every": 2, "train__eval_every": 4, "train__micro_batch_size": None}
    of_text = not task.startswith("lra/")
    config = tiny_config(store, task=task, **still) if of_text else lra_config(task, lra_store(task), **still)
    monkeypatch.setattr(token_windows, "_MOST_LOGITS", 0)  # no logits, as on a GPU
    train(config, tmp_path / "plain", show=False)
    compiled: list[object] = []

    def compile_it(self, function):
        if function.__name__ != "<lambda>":  # AdamW, which a GPU compiles too
            return function
        compiled.append(function)
        return torch.compile(function, fullgraph=True, dynamic=False, backend="aot_eager")

    monkeypatch.setattr(Execution, "compile", compile_it)
    train(config, tmp_path / "ours", show=False)
    assert len(compiled) == (2 if task == "masked_lm" else 3)  # the step, and the scores of a split or two
    same_run(tmp_path / "ours", tmp_path / "plain", rel=1e-4)
    torch.compiler.reset()
