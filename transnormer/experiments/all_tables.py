"""Every experiment, one after the other: what of each can run with the data at hand, and its share of the time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from transnormer.errors import ConfigError, Preempted, TransNormerError
from transnormer.experiments.display import JobDisplay
from transnormer.experiments.executor import Executor
from transnormer.experiments.experiment import Experiment, Selection
from transnormer.experiments.stages import Stages


def plan_all(wanted: Mapping[Experiment, Selection], runs: Path, results: Path) -> list[Stages]:
    """What can run; the columns that cannot are said, each with its reason and what to do about it."""
    planned, say = [], JobDisplay().say
    for experiment, selection in wanted.items():
        folder = experiment.folder(selection.setup)
        every = Stages(experiment, selection, runs / folder, results / folder)
        able = []
        for column in selection.columns:
            try:
                replace(every, selection=replace(selection, columns=[column])).plan()
            except TransNormerError as error:
                say(f"left out: {column} of {experiment.name}: {error}")
            else:
                able.append(column)
        if able:
            planned.append(replace(every, selection=replace(selection, columns=able)))
    if not planned:
        raise ConfigError("nothing can run with these data", hint="give a folder of stores: --data DIR")
    return planned


def run_all(
    planned: Sequence[Stages], workers: int | None, minutes: float | None, executor: Executor, *, dry_run: bool
) -> None:
    """Each in turn with an equal share of the time that is left; what one does not need goes to the others.

    A failure does not keep the others from running; a signal does.
    """
    planned = [
        replace(each, workers=workers, budget_minutes=minutes, rehearse=dry_run, executor=executor) for each in planned
    ]
    for each in planned:
        each.first()  # raises what is wrong with any of them before the first starts
    began, failed = time.monotonic(), []
    for index, each in enumerate(planned):
        left = None if minutes is None else minutes - (time.monotonic() - began) / 60
        share = None if left is None else left / (len(planned) - index)
        display = JobDisplay()
        if share is not None and share <= 0:
            display.say(f"{each.experiment.name}: no time is left for it")
            continue
        display.say(f"{each.experiment.name}:")
        try:
            replace(each, budget_minutes=share).run(display)
        except Preempted:
            raise
        except TransNormerError as error:
            display.say(f"{each.experiment.name}: {error}")
            failed.append(each.experiment.name)
    if failed:
        raise TransNormerError(f"jobs failed in: {', '.join(failed)}", hint="the same command tries them again")
