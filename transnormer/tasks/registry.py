"""Tasks by name. To add one, write its file and name its class here."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from transnormer.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from transnormer.config.schema import RunConfig
    from transnormer.tasks.contract import Task

# Class names, not classes: listing the tasks must not import torch.
TASKS = {"causal_lm": "CausalLM", "masked_lm": "MaskedLM"}


def list_tasks() -> list[str]:
    """Names for the `task` key."""
    return sorted(TASKS)


def build_task(config: RunConfig) -> Task:
    """The task a config asks for, its data opened."""
    if config.task not in TASKS:
        raise ConfigError(f"task: unknown task '{config.task}'", did_you_mean(config.task, TASKS))
    module = import_module(f"transnormer.tasks.{config.task}")
    return getattr(module, TASKS[config.task])(config)
