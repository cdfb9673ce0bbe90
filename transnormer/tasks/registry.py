"""Tasks by name. To add one, write its file and name its class here."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from transnormer.data.lra.spec import SPECS
from transnormer.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from transnormer.config.schema import RunConfig
    from transnormer.tasks.contract import Task

# Modules and class names, not classes: listing the tasks must not import torch.
TASKS = {
    "causal_lm": ("causal_lm", "CausalLM"),
    "masked_lm": ("masked_lm", "MaskedLM"),
    **dict.fromkeys(SPECS, ("lra", "LongRangeArena")),
}


def list_tasks() -> list[str]:
    """Names for the `task` key."""
    return sorted(TASKS)


def task_class(name: str) -> type[Task]:
    """The class behind a name."""
    if name not in TASKS:
        raise ConfigError(f"task: unknown task '{name}'", did_you_mean(name, TASKS))
    module, class_name = TASKS[name]
    return getattr(import_module(f"transnormer.tasks.{module}"), class_name)


def build_task(config: RunConfig) -> Task:
    """The task a config asks for, its data opened."""
    return task_class(config.task)(config)


def find_data(config: RunConfig) -> dict[str, Any]:
    """The origin of the data that `build_task` would prepare for a config without a store, or what it would raise."""
    return task_class(config.task).find_data(config)
