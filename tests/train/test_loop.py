"""The loop: what a run leaves behind, that it resumes bit for bit from anywhere, and what faults do to it."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_run import STEPS, evaluations, journal_lines, losses, stop_at, tiny_config, weights_hash

from transnormer.config.load import config_hash
from transnormer.config.schema import RunConfig
from transnormer.errors import CheckpointError, ConfigError, Preempted
from transnormer.step.evaluation import Evaluation
from transnormer.step.execution import Execution
from transnormer.step.training import StepOutcome, TrainingStep, step_seed
from transnormer.tasks.causal_lm import CausalLM
from transnormer.tasks.contract import Feeds
from transnormer.tasks.masked_lm import MaskedLM
from transnormer.tasks.registry import build_task
from transnormer.train import checkpoint
from transnormer.train.loop import evaluate_run, resume, train
from transnormer.train.run_folder import RunFolder


def test_a_run_folder_holds_all_that_the_run_was(undisturbed: Path, store: Path) -> None:
    result = json.loads((undisturbed / "result.json").read_text())
    assert result["steps"] == STEPS
    assert result["tokens"] == STEPS * 4 * 32
    assert result["config_hash"] == config_hash(tiny_config(store))
    assert result["metrics"] == journal_lines(undisturbed, "eval")[-1]["metrics"]
    names = {path.name for path in undisturbed.iterdir()}
    assert names == {
        "best.json", "checkpoints", "config.yaml", "data.json", "environment.json", "final", "journal.jsonl", "lock",
        "result.json",
    }  # fmt: skip
    checkpoint.verify(undisturbed / "final")


@pytest.mark.reliability("R18")
def test_the_journal_is_truthful(undisturbed: Path) -> None:
    lines = journal_lines(undisturbed, "train")
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert [line["tokens"] for line in lines] == [128 * step for step in range(1, STEPS + 1)]
    assert lines[-1]["loss"] < lines[0]["loss"]
    seconds = [0.0, *(line["seconds"] for line in lines)]
    for before, after, line in zip(seconds, seconds[1:], lines, strict=False):
        assert line["tokens_per_second"] == pytest.approx(128 / (after - before))
    assert [line["step"] for line in journal_lines(undisturbed, "eval")] == [6, 12]


@pytest.mark.reliability("R18")
def test_best_is_the_best_of_the_journal(undisturbed: Path) -> None:
    best = json.loads((undisturbed / "best.json").read_text())
    scores = {step: metrics["perplexity"] for step, metrics in evaluations(undisturbed)}
    assert best == {
        "step": min(scores, key=scores.get),
        "metric": "perplexity",
        "value": min(scores.values()),
    }


def test_checkpoint_and_final_are_hugging_face_folders(undisturbed: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import transnormer  # noqa: F401 (registers the model)

    for folder in (undisturbed / "final", undisturbed / "checkpoints" / f"step-{STEPS:08d}"):
        model = AutoModelForCausalLM.from_pretrained(folder)
        ids = AutoTokenizer.from_pretrained(folder)("devil", return_tensors="pt").input_ids
        assert model(input_ids=ids).logits.isfinite().all()
    same = [load_file(folder / "model.safetensors") for folder in (undisturbed / "final", folder)]
    assert all(torch.equal(same[0][name], same[1][name]) for name in same[0])


def test_the_best_checkpoint_survives_pruning_and_others_do_not(store: Path, tmp_path: Path, monkeypatch) -> None:
    metrics = CausalLM.metrics
    calls = []

    def rising(self, sums):
        calls.append(sums)
        return {**metrics(self, sums), "perplexity": float(len(calls))}

    monkeypatch.setattr(CausalLM, "metrics", rising)
    train(tiny_config(store, train__eval_every=2), tmp_path / "run", show=False)
    kept = [path.name for path in checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints")]
    assert kept == ["step-00000002", "step-00000009", "step-00000012"]
    assert json.loads((tmp_path / "run" / "best.json").read_text())["step"] == 2
    assert evaluate_run(tmp_path / "run", checkpoint="best")["step"] == 2


@pytest.mark.reliability("R4")
@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_resume_after_any_step_is_bit_exact(
    step: int, store: Path, undisturbed: Path, tmp_path: Path, monkeypatch
) -> None:
    stop_at(monkeypatch, step, signal.SIGTERM if step % 2 else signal.SIGINT)
    with pytest.raises(Preempted, match=f"after step {step}") as stopped:
        train(tiny_config(store), tmp_path / "run", show=False)
    assert stopped.value.exit_code == 75
    assert checkpoint.verify(checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints")[-1])["step"] == step
    monkeypatch.undo()
    result = resume(tmp_path / "run", show=False)
    assert [line["step"] for line in journal_lines(tmp_path / "run", "resumed")] == [step]
    assert result["gradient_norm"] == json.loads((undisturbed / "result.json").read_text())["gradient_norm"]
    assert result["gradient_norm"]["steps"] == STEPS
    assert weights_hash(tmp_path / "run") == weights_hash(undisturbed)
    assert losses(tmp_path / "run") == losses(undisturbed)
    assert evaluations(tmp_path / "run") == evaluations(undisturbed)


@pytest.mark.reliability("R4")
@pytest.mark.parametrize(
    "changes",
    [
        {"task": "masked_lm"},
        {"optim__schedule": "one_cycle", "optim__warmup_steps": 4},
        {"optim__clip_norm": None, "optim__clip_value": 0.01, "model__preset": "vanilla-tiny"},
        {"train__precision": "bf16"},
    ],
    ids=["masked_lm", "one_cycle", "vanilla", "bf16"],
)
def test_resume_is_bit_exact_for_other_runs(changes, store: Path, tmp_path: Path, monkeypatch) -> None:
    config = tiny_config(store, **changes)
    train(config, tmp_path / "whole", show=False)
    stop_at(monkeypatch, 5)
    with pytest.raises(Preempted):
        train(config, tmp_path / "run", show=False)
    monkeypatch.undo()
    resume(tmp_path / "run", show=False)
    assert weights_hash(tmp_path / "run") == weights_hash(tmp_path / "whole")


@pytest.mark.reliability("R18")
def test_interrupted_run_counts_time_and_tokens_once(store: Path, tmp_path: Path, monkeypatch) -> None:
    for step in (4, 7):
        stop_at(monkeypatch, step)
        with pytest.raises(Preempted):
            train(tiny_config(store), tmp_path / "run", show=False) if step == 4 else resume(
                tmp_path / "run", show=False
            )
        monkeypatch.undo()
    result = resume(tmp_path / "run", show=False)
    lines = journal_lines(tmp_path / "run", "train")
    assert [line["tokens"] for line in lines] == [128 * step for step in range(1, STEPS + 1)]
    assert result["tokens"] == 128 * STEPS
    assert [line["seconds"] for line in lines] == sorted(line["seconds"] for line in lines)
    assert result["seconds"] == lines[-1]["seconds"]
    seconds = [0.0, *(line["seconds"] for line in lines)]
    for before, after, line in zip(seconds, seconds[1:], lines, strict=False):
        assert line["tokens_per_second"] == pytest.approx(128 / (after - before))


@pytest.mark.reliability("R5")
def test_signal_during_an_evaluation_defers_it_to_the_resumed_run(store, undisturbed, tmp_path, monkeypatch) -> None:
    evaluate = Evaluation.sums

    def interrupted(self, *arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(self, *arguments)

    monkeypatch.setattr(Evaluation, "sums", interrupted)
    with pytest.raises(Preempted, match="after step 6"):
        train(tiny_config(store), tmp_path / "run", show=False)
    assert journal_lines(tmp_path / "run", "eval") == []
    monkeypatch.undo()
    resume(tmp_path / "run", show=False)
    assert evaluations(tmp_path / "run") == evaluations(undisturbed)
    assert weights_hash(tmp_path / "run") == weights_hash(undisturbed)


def test_a_finished_run_says_so(undisturbed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in undisturbed.rglob("*"))
    assert resume(undisturbed) == json.loads((undisturbed / "result.json").read_text())
    assert "is finished after 12 steps" in capsys.readouterr().out
    assert sorted((path, path.stat().st_mtime_ns) for path in undisturbed.rglob("*")) == before


def test_a_config_that_cannot_be_built_leaves_nothing_behind(store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        train(tiny_config(store, model__num_attention_heads=5), tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()


def test_checkpoint_of_another_config_names_the_keys(store: Path, tmp_path: Path, monkeypatch) -> None:
    stop_at(monkeypatch, 4)
    with pytest.raises(Preempted):
        train(tiny_config(store), tmp_path / "run", show=False)
    monkeypatch.undo()
    config_file = tmp_path / "run" / "config.yaml"
    config_file.write_text(config_file.read_text().replace("lr: 0.01", "lr: 0.02").replace("seed: 0", "seed: 1"))
    with pytest.raises(CheckpointError, match=r"optim\.lr was 0\.01, is 0\.02, seed was 0, is 1"):
        resume(tmp_path / "run", show=False)
    assert (tmp_path / "run" / "checkpoints" / "step-00000004").is_dir()


def first_step(config: RunConfig) -> tuple[TrainingStep, StepOutcome, torch.Tensor]:
    """A step, and what its first batch gives: loss and norm, and all gradients as one vector."""
    torch.manual_seed(0)
    task = build_task(config)
    step = TrainingStep(task.build_model(), Feeds(task), config, Execution("eager", torch.device("cpu")))
    (outcome,) = step.advance(0, [0])
    return step, outcome, step.optimizer.gradients.clone()


def test_micro_batches_do_not_change_the_gradient(store: Path) -> None:
    """With padding-free windows the targets are equal, so masked_lm, where they are not, is the real test."""
    for task in ("causal_lm", "masked_lm"):
        found = []
        for size in (1, 3, None):
            config = tiny_config(
                store, task=task, train__micro_batch_size=size, model__dropout=0.0, optim__clip_norm=None
            )
            found.append(first_step(config)[1:])
        for outcome, gradients in found[1:]:
            assert outcome.loss == pytest.approx(found[0][0].loss, rel=1e-6)
            assert outcome.grad_norm == pytest.approx(found[0][0].grad_norm, rel=1e-4)
            torch.testing.assert_close(gradients, found[0][1], rtol=1e-3, atol=1e-6)


def test_the_gradient_is_that_of_the_mean_over_targets(store: Path) -> None:
    config = tiny_config(store, task="masked_lm", model__dropout=0.0, optim__clip_norm=None, optim__lr=1e-30)
    step, outcome, gradients = first_step(config)
    task = MaskedLM(config)
    batch = task.train_batch(range(4))
    mean = task.loss_sum(step.model, batch) / task.targets_in(batch)
    expected = torch.autograd.grad(mean, step.optimizer.parameters)
    assert outcome.loss == pytest.approx(mean.item(), rel=1e-6)
    torch.testing.assert_close(gradients, torch.cat([x.flatten() for x in expected]), rtol=1e-3, atol=1e-6)


def test_evaluate_run_scores_each_kind_of_weights(undisturbed: Path) -> None:
    result = json.loads((undisturbed / "result.json").read_text())
    for which in ("final", "last", "best"):
        scored = evaluate_run(undisturbed, "valid", checkpoint=which)
        assert scored["metrics"] == result["metrics"]
        assert scored["step"] == STEPS
    assert evaluate_run(undisturbed, "test")["metrics"] != result["metrics"]
    with pytest.raises(ConfigError, match="final, best, last"):
        evaluate_run(undisturbed, checkpoint="finall")


def test_a_finished_run_whose_weights_were_let_go_says_so(undisturbed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    RunFolder(run).remove_weights()
    for which in ("final", "best", "last"):
        with pytest.raises(CheckpointError, match="weights were removed") as caught:
            evaluate_run(run, checkpoint=which)
        assert f"transnormer train {run / 'config.yaml'} --out" in (caught.value.hint or "")


def test_the_result_names_every_process_of_a_run(store: Path, tmp_path: Path, monkeypatch) -> None:
    with monkeypatch.context() as stopped:
        stop_at(stopped, 4)
        with pytest.raises(Preempted):
            train(tiny_config(store), tmp_path / "run", show=False)
    segments = resume(tmp_path / "run", show=False)["segments"]
    assert [each["after"] for each in segments] == [0, 4]
    for each in segments:
        assert each["command"]
        assert each["date"].startswith("20")
        assert "commit" in each


def test_evaluate_run_refuses_altered_or_missing_weights(store: Path, tmp_path: Path, monkeypatch) -> None:
    stop_at(monkeypatch, 4)
    with pytest.raises(Preempted):
        train(tiny_config(store), tmp_path / "run", show=False)
    with pytest.raises(CheckpointError, match="no final weights"):
        evaluate_run(tmp_path / "run")
    weights = tmp_path / "run" / "checkpoints" / "step-00000004" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-3] ^= 4
    weights.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors differs"):
        evaluate_run(tmp_path / "run", checkpoint="last")


def test_tensorboard_only_when_asked_and_installed(store: Path, tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tiny_config(store, train__tensorboard=True), tmp_path / "run", show=False)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [
        (step, pytest.approx(loss)) for step, loss in losses(tmp_path / "run")
    ]
    assert [event.step for event in events.Scalars("valid/perplexity")] == [6, 12]

    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match="not installed"):
        train(tiny_config(store, train__tensorboard=True), tmp_path / "other", show=False)
    assert not (tmp_path / "other").exists()


def test_plain_lines_where_there_is_no_terminal(store: Path, tmp_path: Path, capsys) -> None:
    train(tiny_config(store, train__log_every=5), tmp_path / "run")
    first, *lines = capsys.readouterr().out.splitlines()
    for fact in (
        "t2-tiny, ",
        " parameters, on cpu with 1 thread (OMP_NUM_THREADS) (float32, eager, ops by torch)",
        f"causal_lm on {store}",
        "12 steps of 4",
    ):
        assert fact in first
    assert [line.split("  ")[0] for line in lines] == [
        "step 1/12", "step 5/12", "step 6/12", "step 10/12", "step 12/12", "step 12/12",
    ]  # fmt: skip
    for word in ("loss", "lr", "grad norm", "tokens/s", "left"):
        assert word in lines[0]
    assert "valid:" in lines[2]
    assert "perplexity" in lines[2]


def test_bf16_trains_and_precision_may_change_between_runs(store: Path, tmp_path: Path, undisturbed: Path) -> None:
    result = train(tiny_config(store, train__precision="bf16"), tmp_path / "run", show=False)
    assert result["precision"] == "bf16"
    assert losses(tmp_path / "run") != losses(undisturbed)
    assert losses(tmp_path / "run")[0][1] == pytest.approx(losses(undisturbed)[0][1], rel=0.02)
    weights = load_file(tmp_path / "run" / "final" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    assert train(tiny_config(store, train__steps=3), tmp_path / "next", show=False)["precision"] == "float32"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_where_there_is_none_is_an_error(store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no CUDA device"):
        train(tiny_config(store, train__device="cuda"), tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()


def test_of_equal_scores_the_first_is_the_best(store: Path, tmp_path: Path, monkeypatch) -> None:
    metrics = CausalLM.metrics
    monkeypatch.setattr(CausalLM, "metrics", lambda self, sums: {**metrics(self, sums), "perplexity": 3.0})
    train(tiny_config(store, train__steps=4, train__eval_every=1), tmp_path / "run", show=False)
    assert json.loads((tmp_path / "run" / "best.json").read_text())["step"] == 1


def test_a_first_score_of_nan_does_not_stay_the_best(store: Path, tmp_path: Path, monkeypatch) -> None:
    metrics, scores = CausalLM.metrics, [math.nan, 3.0, 4.0, 4.0]  # the last is that of the test split
    monkeypatch.setattr(CausalLM, "metrics", lambda self, sums: {**metrics(self, sums), "perplexity": scores.pop(0)})
    train(tiny_config(store, train__steps=3, train__eval_every=1), tmp_path / "run", show=False)
    assert json.loads((tmp_path / "run" / "best.json").read_text())["step"] == 2


def test_every_step_of_every_rank_draws_its_own_dropout(store: Path, tmp_path: Path, monkeypatch) -> None:
    seeds = []
    made, advance = TrainingStep._train, TrainingStep.advance

    def noted(self):
        seeds.append(torch.initial_seed())
        made(self)

    def of_rank_3(self, step, batches):
        with monkeypatch.context() as patch:
            patch.setattr(self.ranks, "rank", 3)
            return advance(self, step, batches)

    monkeypatch.setattr(TrainingStep, "_train", noted)
    monkeypatch.setattr(TrainingStep, "advance", of_rank_3)
    train(tiny_config(store, seed=5, train__steps=4, train__eval_every=4), tmp_path / "run", show=False)
    assert seeds == [step_seed(5, step, 3) for step in range(4)]


def test_a_batch_larger_than_memory_is_refused_before_it_is_made(store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.batch_size=1000000000000: the inputs alone of a step take"):
        train(tiny_config(store, train__batch_size=10**12), tmp_path / "run", show=False)


def test_a_run_of_any_length_starts_at_once(store: Path, tmp_path: Path, monkeypatch) -> None:
    """Nothing is made for each step in advance."""
    advance = TrainingStep.advance

    def once(self, step, batches):
        assert step == 0
        advance(self, step, batches)
        raise KeyboardInterrupt

    monkeypatch.setattr(TrainingStep, "advance", once)
    with pytest.raises(KeyboardInterrupt):
        train(tiny_config(store, train__steps=10**12, optim__warmup_steps=10**11), tmp_path / "run", show=False)


def test_a_seed_is_of_one_run_one_step_and_one_rank() -> None:
    seeds = [step_seed(seed, step, rank) for seed in range(3) for step in range(20) for rank in range(3)]
    assert len(set(seeds)) == len(seeds)
