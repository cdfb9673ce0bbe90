"""Evaluate a task op by op on the CPU."""

from __future__ import annotations

import torch

from transnormer.step.evaluation import Evaluation
from transnormer.step.execution import Execution
from transnormer.tasks.contract import Feeds, Task


def sums_of(task: Task, model: torch.nn.Module, split: str, rank: int = 0, world_size: int = 1) -> dict[str, float]:
    """The sums of a rank's share of a split."""
    eager = Execution("eager", torch.device("cpu"))
    return Evaluation(model, Feeds(task), task.config.train, eager).sums(split, rank, world_size)
