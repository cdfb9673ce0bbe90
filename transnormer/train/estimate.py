"""What to type where a run would take longer than its owner may have thought."""

from __future__ import annotations

from pathlib import Path

from transnormer.config.schema import RunConfig
from transnormer.errors import command
from transnormer.train.progress import in_hours

LONG = 3600.0  # seconds
SURE_AFTER_STEPS, SURE_AFTER_SECONDS = 3, 20.0  # the first step is slower than the others


def is_sure(steps: int, seconds_a_step: float) -> bool:
    """Whether so many steps tell how long the others will take."""
    return steps >= SURE_AFTER_STEPS or steps * seconds_a_step >= SURE_AFTER_SECONDS


def warning(config: RunConfig, run: Path, step: int, seconds_a_step: float) -> str | None:
    """A line that says how to end sooner, for a run that has more than an hour to go."""
    left = seconds_a_step * (config.train.steps - step)
    if left <= LONG:
        return None
    fitting = step + int(LONG / seconds_a_step)
    told = f"this takes about {in_hours(left)} more"
    if fitting > max(config.optim.warmup_steps, step):
        shorter = command("resume", run, f"train.steps={fitting}")
        return f"{told}; to end within an hour, press Ctrl-C and type: {shorter}"
    return f"{told}; for a shorter run press Ctrl-C and begin anew with a smaller model.preset or train.batch_size"
