"""Predictions for examples whose labels are not known, with the weights of a finished run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from transnormer.data.glue.submission import write_submission
from transnormer.errors import ConfigError, DataError
from transnormer.files import disk_errors
from transnormer.step.evaluation import evaluation_batch
from transnormer.tasks.glue import Glue
from transnormer.train.checkpoint import Which
from transnormer.train.learner import Learner
from transnormer.train.loop import load_run


def predict_run(run: Path | str, out: Path | str, checkpoint: Which = "best") -> list[Path]:
    """Predict every test set of a GLUE run's store, and write a file for each."""
    learner, _ = load_run(run, checkpoint)
    task = learner.task
    if not isinstance(task, Glue):
        raise ConfigError(f"{run} is a run of {learner.config.task}", hint="only glue tasks have test sets to predict")
    if not (splits := task.store.meta["unlabelled"]):
        raise DataError(
            f"{task.store.path} has no test set", hint=f"prepare it again from a folder with {task.spec.files[-1][1]}"
        )
    with disk_errors(Path(out)):
        Path(out).mkdir(parents=True, exist_ok=True)
    return [write_submission(Path(out), task.spec, split, _predicted(learner, task, split)) for split in splits]


def _predicted(learner: Learner, task: Glue, split: str) -> np.ndarray:
    """The class of each example of a split, in order."""
    examples, device = task.examples(split), learner.ranks.device
    predicted = np.empty(len(examples), dtype=np.int64)
    learner.model.eval()
    every = np.arange(len(examples))
    for numbers in task.by_length(examples, every, evaluation_batch(learner.config.train)):
        batch = {name: tensor.to(device) for name, tensor in task.batch(examples, numbers).items()}
        with torch.no_grad(), learner.execution.autocast():
            predicted[numbers] = task.logits(learner.model, batch).argmax(dim=-1).cpu().numpy()
    return predicted
