"""Tasks by name, with what can be said without their classes. To add one, write its file and name its class here."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from transnormer.data.glue.spec import SPECS as GLUE
from transnormer.data.lra.spec import SPECS as LRA
from transnormer.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from transnormer.config.schema import RunConfig
    from transnormer.tasks.contract import Task


@dataclass(frozen=True)
class Entry:
    """A module and the name of its class, not the class: listing the tasks must not import torch."""

    module: str
    class_name: str
    about: str
    primary_metric: str  # by which the best checkpoint is chosen
    higher_is_better: bool


TASKS = {
    "causal_lm": Entry("causal_lm", "CausalLM", "each token from those before it in its window", "perplexity", False),
    "masked_lm": Entry("masked_lm", "MaskedLM", "15 % of the tokens, from all others (RoBERTa's)", "perplexity", False),
    "recall/mqar": Entry("mqar", "MQAR", "the value of each key, from pairs seen before (Zoology's)", "accuracy", True),
    **{name: Entry("lra", "LongRangeArena", spec.summary, "accuracy", True) for name, spec in LRA.items()},
    **{name: Entry("glue", "Glue", spec.summary, spec.metrics[0], True) for name, spec in GLUE.items()},
}


def task_entry(name: str) -> Entry:
    """What is known of a task without its class."""
    if name not in TASKS:
        raise ConfigError(f"task: unknown task '{name}'", did_you_mean(name, TASKS))
    return TASKS[name]


def task_class(name: str) -> type[Task]:
    """The class behind a name."""
    entry = task_entry(name)
    return getattr(import_module(f"transnormer.tasks.{entry.module}"), entry.class_name)


def build_task(config: RunConfig) -> Task:
    """The task a config asks for, its data opened."""
    return task_class(config.task)(config)


def settled(config: RunConfig) -> RunConfig:
    """A config with all that its data decide, such as how many steps an epoch is."""
    return task_class(config.task).settled(config)


def find_data(config: RunConfig) -> dict[str, Any]:
    """The origin of the data that `build_task` would prepare for a config without a store, or what it would raise."""
    return task_class(config.task).find_data(config)
