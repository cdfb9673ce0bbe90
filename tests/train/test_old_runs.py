"""A run folder that commit 4afd138 left half done: its keys had other names, and it still resumes, scores and loads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from tiny_run import losses
from transformers import AutoModelForSequenceClassification

import transnormer  # noqa: F401 - registers the models
from transnormer.errors import CheckpointError
from transnormer.train.loop import evaluate_run, resume
from transnormer.train.run_folder import RunFolder

OLD = Path(__file__).parent / "run_of_4afd138"
# What that version's own uninterrupted run gave, and the logits of its checkpoint.
EXPECTED = json.loads((Path(__file__).parent / "run_of_4afd138.json").read_text())


@pytest.fixture
def run(lra_store, tmp_path: Path) -> Path:
    """The folder, with its store where these tests keep it."""
    folder = tmp_path / "run"
    shutil.copytree(OLD, folder)
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("/tmp/old-run/store", str(lra_store("lra/listops"))))
    return folder


@pytest.mark.reliability("R14")
def test_its_keys_are_read_under_their_new_names(run: Path) -> None:
    config = RunFolder(run).read_config()
    assert (config.lra.protocol, config.lra.valid_examples, config.lra.limit_examples) == ("lra_compat", 4, None)
    assert (config.train.execution, config.data.eval_windows) == ("eager", None)


@pytest.mark.reliability("R14")
def test_it_resumes_where_it_stopped(run: Path) -> None:
    result = resume(run, show=False)
    assert losses(run) == [(int(step), pytest.approx(loss, rel=1e-4)) for step, loss in EXPECTED["losses"].items()]
    assert result["metrics"]["loss"] == pytest.approx(EXPECTED["valid_loss"], rel=1e-4)
    assert result["test"]["metrics"]["loss"] == pytest.approx(EXPECTED["test_loss"], rel=1e-4)
    assert evaluate_run(run, "valid", "final")["metrics"] == pytest.approx(result["metrics"], rel=1e-5)


@pytest.mark.reliability("R14")
def test_a_changed_key_is_named_as_it_is_called_now(run: Path) -> None:
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("protocol: lra_compat", "protocol: skyformer"))
    with pytest.raises(CheckpointError, match=r"lra\.protocol was 'lra_compat', is 'skyformer'"):
        resume(run, show=False)


@pytest.mark.reliability("R14")
def test_its_checkpoint_is_a_model_with_the_same_logits() -> None:
    model = AutoModelForSequenceClassification.from_pretrained(OLD / "checkpoints" / "step-00000004").eval()
    with torch.no_grad():
        logits = model(input_ids=torch.arange(1, 25)[None] % 16).logits[0]
    torch.testing.assert_close(logits, torch.tensor(EXPECTED["logits"]), rtol=1e-5, atol=1e-6)
