"""result.json: what a finished run achieved, at what cost, and from what it can be repeated."""

from __future__ import annotations

from typing import Any

import torch

from transnormer.config.load import config_hash
from transnormer.environment import describe_environment
from transnormer.files import write_json
from transnormer.train.gradient_norm import gradient_norm
from transnormer.train.learner import Learner, count_parameters
from transnormer.train.run_folder import RunFolder
from transnormer.train.state import RunState


def write_result(
    folder: RunFolder, learner: Learner, state: RunState, test: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Write result.json, the sign that the run is finished, and return its content.

    `metrics` are those of the last step and `best` those of the best, both on the validation split; `test` is the score
    of the best checkpoint on the test split, for a task that asks for one.
    """
    config, task = learner.config, learner.task
    best = state.best
    result = {
        "task": config.task,
        "preset": config.model.preset,
        "init": folder.read_initial(),
        "protocol": task.protocol,
        "primary_metric": task.primary_metric,
        "metrics": state.metrics,
        "best": {"step": best.step, "metrics": best.metrics} if best else None,
        "test": test,
        "examples": _examples(learner, with_test=test is not None),
        "segments": folder.read_segments(),
        "parameters": count_parameters(learner.model),
        "steps": state.step,
        "tokens": state.tokens,
        "seconds": state.seconds,
        "tokens_per_second": state.tokens / state.seconds if state.seconds > 0 else 0.0,
        "peak_memory_bytes": _peak_memory_bytes(learner),
        "nonfinite": state.nonfinite,
        "gradient_norm": gradient_norm(folder.journal_file, state.nonfinite),
        "seed": config.seed,
        "processes": learner.ranks.world_size,
        "device": learner.ranks.device.type,
        "precision": "bf16" if learner.ranks.uses_bf16 else "float32",
        "execution": learner.execution.name,
        "data": {"store": learner.task.store.path.name, "digest": learner.task.store.digest},
        "config_hash": config_hash(config),
        **describe_environment(),
    }
    write_json(folder.result_file, result)
    return result


def _examples(learner: Learner, *, with_test: bool) -> dict[str, int]:
    """How many examples each split was scored on, for a task that counts them."""
    task = learner.task
    splits = ["valid", *([task.test_split] if with_test and task.test_split else [])]
    return {split: count for split in splits if (count := task.examples_scored(split)) is not None}


def _peak_memory_bytes(learner: Learner) -> int | None:
    """The most GPU memory that this process, since it started or resumed the run, had allocated; None on the CPU."""
    device = learner.ranks.device
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
