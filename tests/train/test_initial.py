"""Starting from weights: what is taken, what begins anew, what is refused, and that a run folder needs nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from lra_files import lra_config
from safetensors.torch import load_file, save_file
from tiny_run import journal_lines, losses, stop_at, tiny_config, weights_hash

from transnormer.config.load import load_config
from transnormer.config.schema import RunConfig
from transnormer.data.prepare import prepare
from transnormer.errors import CheckpointError, ConfigError, Preempted, TransNormerError
from transnormer.files import sha256
from transnormer.models.export import export_model
from transnormer.train.learner import Learner
from transnormer.train.loop import evaluate_run, resume, train
from transnormer.train.ranks import Ranks

TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


@pytest.fixture(scope="module")
def masked(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("masked") / "run"
    train(tiny_config(store, task="masked_lm", train__steps=3), run, show=False)
    return run


@pytest.fixture(scope="module")
def classified(lra_store, masked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("classified") / "run"
    train(child(masked, task="lra/text", store=lra_store("lra/text")), run, show=False)
    return run


def child(init: Path, *overrides: str, task: str = "causal_lm", store: Path) -> RunConfig:
    """What a person gets who types only `model.init` and the task."""
    made = lra_config(task, store) if task.startswith("lra/") else tiny_config(store, task=task)
    tree = made.model_dump(mode="json", exclude={"model"})
    recipe = init.parent / f"recipe-{task.replace('/', '-')}.yaml"
    recipe.write_text(json.dumps({**tree, "model": {"preset": "t1-tiny"}}))
    return load_config(recipe, [f"model.init={init}", *overrides])


def started(config: RunConfig) -> Learner:
    learner = Learner(config, Ranks(config.train))
    learner.take_initial()
    return learner


def test_all_weights_of_the_same_task_are_taken(undisturbed: Path, store: Path) -> None:
    config = child(undisturbed, store=store)
    assert (config.model.preset, config.model.hidden_size) == ("t2-tiny", 16)  # of the weights, not of the recipe
    learner = started(config)
    stored = load_file(undisturbed / "final" / "model.safetensors")
    assert all(torch.equal(learner.model.state_dict()[name], tensor) for name, tensor in stored.items())
    assert learner.origin == f"backbone and lm head from {undisturbed} (step 12)"


def test_training_goes_on_from_there(undisturbed: Path, store: Path, tmp_path: Path) -> None:
    """An evaluation of weights that a vanishing learning rate leaves alone gives the score of the run they are of."""
    result = train(child(undisturbed, "optim.lr=1e-30", store=store), tmp_path / "run", show=False)
    before = json.loads((undisturbed / "result.json").read_text())
    assert result["metrics"]["loss"] == pytest.approx(before["metrics"]["loss"], rel=1e-6)
    assert result["init"]["sha256"] == sha256(undisturbed / "final" / "model.safetensors")
    assert before["init"] is None
    (event,) = journal_lines(tmp_path / "run", "init")
    assert event["text"] == result["init"]["taken"] == f"backbone and lm head from {undisturbed} (step 12)"


def test_a_classifier_begins_anew_on_a_masked_model(masked: Path, classified: Path, lra_store) -> None:
    learner = started(child(masked, task="lra/text", store=lra_store("lra/text")))
    stored = load_file(masked / "final" / "model.safetensors")
    ours = learner.model.state_dict()
    backbone = {name for name in stored if name.startswith("model.")}
    assert backbone == {name for name in ours if name.startswith("model.")}
    assert all(torch.equal(ours[name], stored[name]) for name in backbone)
    assert learner.origin == f"backbone from {masked} (step 3), new classifier"
    recorded = json.loads((classified / "init.json").read_text())
    assert recorded["taken"] == learner.origin


def test_a_classifier_is_taken_by_its_own_task_alone(classified: Path, lra_store, tmp_path: Path) -> None:
    text = started(child(classified, task="lra/text", store=lra_store("lra/text")))
    stored = load_file(classified / "final" / "model.safetensors")
    assert all(torch.equal(text.model.state_dict()[name], tensor) for name, tensor in stored.items())
    other = started(child(classified, task="lra/pathfinder", store=lra_store("lra/pathfinder")))
    assert other.origin.endswith("new classifier (the one there is of lra/text)")
    assert not torch.equal(other.model.classifier.dense.weight, stored["classifier.dense.weight"])
    export_model(classified / "final", tmp_path / "exported")
    unknown = started(child(tmp_path / "exported", task="lra/text", store=lra_store("lra/text")))
    assert "new classifier" in unknown.origin
    pair = started(child(classified, task="lra/retrieval", store=lra_store("lra/retrieval")))
    assert pair.origin.endswith("new pair classifier")


def test_an_exported_model_brings_its_own_config(undisturbed: Path, store: Path, tmp_path: Path, monkeypatch) -> None:
    """Without a preset anywhere; once the run has a checkpoint, the folder may go."""
    export_model(undisturbed / "final", tmp_path / "exported", "bfloat16")
    config = child(tmp_path / "exported", store=store)
    assert config.model.preset is None
    stop_at(monkeypatch, 4)
    with pytest.raises(Preempted):
        train(config, tmp_path / "run", show=False)
    monkeypatch.undo()
    learner = started(config)
    stored = load_file(tmp_path / "exported" / "model.safetensors")
    assert all(torch.equal(learner.model.state_dict()[name], tensor.float()) for name, tensor in stored.items())
    shutil.rmtree(tmp_path / "exported")
    result = resume(tmp_path / "run", show=False)
    assert (result["preset"], result["steps"]) == (None, 12)
    assert result["init"]["folder"] == str(tmp_path / "exported")
    assert evaluate_run(tmp_path / "run")["metrics"] == result["metrics"]


def test_a_run_that_stopped_before_its_first_checkpoint_reads_the_weights_again(
    undisturbed: Path, store: Path, tmp_path: Path
) -> None:
    init = tmp_path / "init"
    shutil.copytree(undisturbed, init)
    config = child(init, store=store)
    train(config, tmp_path / "whole", show=False)
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        shutil.rmtree(path)
    for name in ("result.json", "best.json"):
        (tmp_path / "run" / name).unlink()
    journal = tmp_path / "run" / "journal.jsonl"
    journal.write_text(journal.read_text().splitlines(keepends=True)[0])  # as far as the run came
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    resume(tmp_path / "run", show=False)
    assert weights_hash(tmp_path / "run") == weights_hash(tmp_path / "whole")
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    resume_from_other_weights(tmp_path / "other", init)


def resume_from_other_weights(run: Path, init: Path) -> None:
    shutil.rmtree(init / "final")
    shutil.copytree(next(iter((init / "checkpoints").glob("step-*9"))), init / "final")
    with pytest.raises(CheckpointError, match="are not those that the run began with"):
        resume(run, show=False)


def refusal(config: RunConfig) -> str:
    with pytest.raises(TransNormerError) as caught:
        started(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_weights_that_do_not_fit_are_refused(undisturbed: Path, masked: Path, store: Path, tmp_path: Path) -> None:
    said = refusal(child(undisturbed, "model.intermediate_size=32", store=store))
    assert "model.layers.0.feed_forward.down_proj.weight is [16, 24] in" in said
    assert ", [16, 32] in this run" in said
    assert "model.hidden_act=silu, this run gelu" in refusal(child(undisturbed, "model.hidden_act=gelu", store=store))
    assert "mixer_options.diag.block_size=64, this run 32" in refusal(
        child(undisturbed, "model.mixer_options={diag: {block_size: 32}}", store=store)
    )
    assert "is a bidirectional model, this task trains a causal model" in refusal(child(masked, store=store))
    preset = [f"model.{name}={value}" for name, value in TINY.items()]
    assert "mixer_options.diag.kind=softmax, this run rela" in refusal(
        child(undisturbed, "model.preset=t1-tiny", *preset, store=store)
    )


def test_a_table_of_positions_of_another_length_is_explained(store: Path, tmp_path: Path) -> None:
    learned = {"model__position_embedding": "learned", "model__max_position_embeddings": 32, "train__steps": 3}
    train(tiny_config(store, **learned), tmp_path / "short", show=False)
    text = refusal(child(tmp_path / "short", "model.max_position_embeddings=64", store=store))
    assert "model.embed_positions.weight is [32, 16]" in text
    assert "[64, 16] in this run" in text
    assert "model.max_position_embeddings=32" in text
    started(child(tmp_path / "short", store=store))


def test_data_of_another_tokenizer_are_refused(undisturbed: Path, store: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text((store.parent / "text.txt").read_text() * 3)
    bpe = prepare("text", tmp_path / "bpe", tokenizer="bpe", vocab_size=270, source=str(text))
    said = refusal(child(undisturbed, store=bpe))
    assert f"the tokenizer of {bpe} is not that of {undisturbed}" in said
    assert f"--tokenizer {undisturbed / 'final'}" in said
    again = prepare("text", tmp_path / "again", tokenizer=str(undisturbed / "final"), source=str(text))
    started(child(undisturbed, store=again))


def test_folders_that_hold_no_usable_weights(undisturbed: Path, store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        child(tmp_path / "nowhere", store=store)
    with pytest.raises(ConfigError, match="neither a run nor a model folder"):
        child(store, store=store)
    damaged = tmp_path / "damaged"
    shutil.copytree(undisturbed, damaged)
    weights = damaged / "final" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert "differs from its recorded sha256" in refusal(child(damaged, store=store))
    (damaged / "final" / "manifest.json").unlink()
    shutil.move(damaged / "final", tmp_path / "cut")
    (tmp_path / "cut" / "model.safetensors").write_bytes(weights_of(tmp_path / "cut")[:-100])
    assert "is damaged" in refusal(child(tmp_path / "cut", store=store))
    assert "weights were removed" in refusal(child(damaged, store=store))
    stored = load_file(undisturbed / "final" / "model.safetensors")
    stored["model.surplus"] = torch.zeros(2)
    save_file(stored, tmp_path / "cut" / "model.safetensors")
    assert "model.surplus is [2]" in refusal(child(tmp_path / "cut", store=store))


def weights_of(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_a_checkpoint_of_an_unfinished_run_can_be_named(undisturbed: Path, store: Path) -> None:
    learner = started(child(undisturbed / "checkpoints" / "step-00000009", store=store))
    assert learner.origin.endswith("step-00000009 (step 9)")
