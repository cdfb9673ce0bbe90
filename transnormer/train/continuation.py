"""Keys that may change when a run is resumed: how long it trains, and how often it looks, saves and tells."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from transnormer.config.keys import changed_keys
from transnormer.config.load import overridden
from transnormer.config.schema import RunConfig
from transnormer.errors import ConfigError, command
from transnormer.step.schedules import learning_rate
from transnormer.train.run_folder import RunFolder

# None of them changes what a step computes, but for the schedule, whose length is the run's, and dropout, which is each
# process's own.
FREE = frozenset(
    f"train.{key}"
    for key in (
        "steps",
        "eval_every",
        "save_every",
        "log_every",
        "keep_last",
        "tensorboard",
        "log_layer_gradients",
        "context_parallel",
        "parallel",
        "rank_timeout",
    )
)


def changed_config(folder: RunFolder, overrides: Sequence[str]) -> RunConfig:
    """The config of a run with what may change of it changed."""
    before = folder.read_config()
    config = overridden(before, overrides)
    if refused := changed_keys(before.model_dump(mode="json"), config.model_dump(mode="json"), FREE):
        raise ConfigError(
            f"{', '.join(refused)}: cannot change in a run that has begun, it would be a run of two configs",
            hint=f"what may: {', '.join(sorted(FREE))}; to change more, start a new run with "
            + shlex.quote(f"model.init={folder.path}"),
        )
    return config


def require_steps_left(folder: RunFolder, config: RunConfig, done: int, finished: bool) -> None:
    """Refuse to end before what has been done, and to go on without the optimizer's state."""
    if config.train.steps < done:
        raise ConfigError(
            f"train.steps={config.train.steps}: {folder.path} has made {done} steps already",
            hint=f"give more than {done}, or leave it out",
        )
    if finished and done == 0:
        anew = command("train", "RECIPE", f"model.init={folder.path}", "--out", "NEW")
        raise ConfigError(
            f"{folder.path} is finished, and its checkpoints, from which it could go on, are gone",
            hint=f"start a new run from its weights: `{anew}`",
        )


def in_words(before: RunConfig, now: RunConfig, step: int) -> list[str]:
    """What changes from a step on, a line each; the schedule is from there on that of the new length."""
    changed = changed_keys(before.model_dump(mode="json"), now.model_dump(mode="json"))
    lines = [f"{key} was {was}, is {value} after step {step}" for key, (was, value) in changed.items()]
    rates = [learning_rate(config.optim, config.train.steps, step) for config in (before, now)]
    if step < now.train.steps != before.train.steps:
        was = f"{rates[0]:.3g}" if step < before.train.steps else "at its end"
        lines.append(f"the learning rate was {was}, and goes on as in a run of {now.train.steps} steps: {rates[1]:.3g}")
    return lines
