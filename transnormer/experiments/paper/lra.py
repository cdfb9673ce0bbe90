"""The Long-Range Arena table of the paper, test accuracy in percent, and the jobs that make it anew.

Qin et al., "The Devil in Linear Transformer", EMNLP 2022 (arXiv:2210.10340), table "Quantitative results on the
Long-Range Arena benchmark". Its rows from vanilla to skyformer are taken from Chen et al., "Skyformer", NeurIPS 2021
(arXiv:2111.00035), table 1, means of three seeds. It has no row for 1+elu and none for llama.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from transnormer.config.load import load_config
from transnormer.data.lra.spec import spec_of
from transnormer.experiments.data_record import read_all
from transnormer.experiments.experiment import Experiment, Selection
from transnormer.experiments.paper.lra_setups import (
    COPIED,
    SETUPS,
    TRIAL_SCHEDULE,
    TRIAL_SEED,
    as_published,
    options,
    require_apart,
)
from transnormer.experiments.record import Record, read_records
from transnormer.experiments.skipped import skipped_in_words
from transnormer.experiments.table import CHANGED, STAND_IN, Figure, Records, Table, mean, score
from transnormer.experiments.trials import Trials
from transnormer.markdown import markdown_table
from transnormer.models.presets import METHODS, list_presets, preset

TASKS = ("listops", "text", "image", "pathfinder", "retrieval")

_COLUMNS = ("text", "listops", "retrieval", "pathfinder", "image")
_ROWS: dict[str, tuple[float, ...]] = {
    "vanilla": (61.95, 38.37, 80.69, 65.26, 40.57),
    "kernelized": (60.22, 38.78, 81.77, 70.73, 41.29),
    "nystrom": (64.83, 38.51, 80.52, 69.48, 41.30),
    "linformer": (58.93, 37.45, 78.19, 60.93, 37.96),
    "informer": (62.64, 32.53, 77.57, 57.83, 38.10),
    "performer": (64.19, 38.02, 80.04, 66.30, 41.43),
    "reformer": (62.93, 37.68, 78.99, 66.49, 48.87),
    "bigbird": (63.86, 39.25, 80.28, 68.72, 43.16),
    "skyformer": (64.70, 38.69, 82.06, 70.73, 40.77),
    "long_short": (66.62, 40.30, 81.68, 69.98, 47.60),
    "cosformer": (67.70, 36.50, 83.15, 71.96, 51.23),
    "flash_quad": (64.10, 42.20, 83.00, 63.28, 48.30),
    "flash": (64.10, 38.70, 86.10, 70.25, 47.40),
    "linear_elu": (),
    "t1": (66.90, 41.03, 83.11, 75.92, 51.60),
    "t2": (72.20, 41.60, 83.82, 76.80, 49.60),
    "llama": (),
}

# Every method of the zoo in the order of the table, with its accuracy on each task where the paper has one.
PAPER: dict[str, dict[str, float]] = {
    method: dict(zip(_COLUMNS, values, strict=True)) if values else {} for method, values in _ROWS.items()
}
_FAR = 3  # points
# Training steps per second of the models of `skyformer` at 4,096 tokens, op by op: results/bench/speed-skyformer.json.
# There, Python holds up the quick ones all alike; it is the slow ones that this is to find.
_STEPS_PER_SECOND = {
    "t1": 97.4,
    "t2": 89.8,
    "vanilla": 124.1,
    "linear_elu": 110.5,
    "performer": 74.5,
    "flash_quad": 35.8,
    "flash": 61.1,
    "long_short": 59.1,
    "cosformer": 84.8,
    "linformer": 146.9,
    "reformer": 71.2,
    "nystrom": 60.2,
    "kernelized": 27.9,
    "informer": 38.4,
    "bigbird": 67.2,
    "skyformer": 52.9,
}


def locate(record: Record) -> tuple[str, str] | None:
    """Method and task of a record; None for one of another experiment."""
    method, _, task = record.preset.rpartition("-lra-")
    return (method, task) if method and record.task == f"lra/{task}" else None


def _means(records: Records) -> dict[str, Sequence[str]]:
    """Over all tasks, and over those that are not only stand-ins, or not run at all."""
    means: dict[str, Sequence[str]] = {f"mean of {len(TASKS)}": TASKS}
    others = [task for task in TASKS if all(record.is_stand_in for record in TABLE.of(records, None, task))]
    if 0 < len(others) < len(TASKS) - 1:
        means[f"mean without {', '.join(others)}"] = [task for task in TASKS if task not in others]
    return means


def interval(record: Record) -> tuple[float, float] | None:
    """Of its accuracy, as a figure has it."""
    return record.interval


def _notes(records: Records) -> list[str]:
    return [
        *_highest(records),
        *_choices(records),
        *skipped_in_words(records),
        *_distances(records),
        *_validated_on_test(records),
    ]


def _highest(records: Records) -> list[str]:
    """Who has the highest of the last of the means, and who cannot be told from it by the deviations over seeds."""
    name, tasks = list(_means(records).items())[-1]
    averages = {row: mean([TABLE.value(records, row, task) for task in tasks]) for row in TABLE.rows_that_ran(records)}
    means = {row: average for row, average in averages.items() if average is not None}
    if len(means) < 2:
        return []
    first, *rest = sorted(means, key=means.__getitem__, reverse=True)
    deviations = {row: TABLE.deviation(records, row, tasks) for row in means}
    largest = max((each for each in deviations.values() if each is not None), default=None)
    if largest is None:
        return [f"Highest {name}: {first}, then {rest[0]}; one seed, of unknown spread."]
    spread = {row: largest if found is None else found for row, found in deviations.items()}
    near = [row for row in rest if means[first] - means[row] <= spread[first] + spread[row]]
    apart = f"not told apart from it: {', '.join(near)}" if near else "apart from all others"
    return [f"Highest {name}: {first}, {apart}, by standard deviations over seeds, the largest for a row of one seed."]


def _choices(records: Records) -> list[str]:
    """What each method chose on each task, where it could: a line a method."""
    chosen: dict[str, dict[str, str]] = {}
    for record in records:
        if record.choice and (at := locate(record)):
            chosen.setdefault(at[0], {})[at[1]] = record.choice.name
    by_row = {row: ", ".join(f"{task} {name}" for task, name in tasks.items()) for row, tasks in chosen.items()}
    return [f"{row} chose, by trials on the validation split: {choices}." for row, choices in by_row.items()]


def _distances(records: Records) -> list[str]:
    """Where the paper's set-up as it is stated does not give the paper's numbers, on data such as the paper's."""
    setup = LongRangeArena.setups["skyformer"]
    stated = [record for record in records if record.recipe_folder == setup and record.data.is_papers]
    far = []
    for task in TASKS:
        for method in TABLE.rows_that_ran(stated):
            ours, papers = TABLE.value(stated, method, task), PAPER[method].get(task)
            if ours is not None and papers is not None and abs(ours - papers) > _FAR:
                far.append(f"{method} on {task} {ours - papers:+.2f}")
    return [f"More than {_FAR} points from the paper's figure: {', '.join(far)}."] if far else []


def _validated_on_test(records: Records) -> list[str]:
    if any(record.task == "lra/text" and record.protocol.startswith("lra_compat") for record in records):
        return ["text under lra_compat: the checkpoint that is best on the test split, as in published numbers."]
    return []


def _papers(task: str) -> dict[str, float]:
    return {method: figures[task] for method, figures in PAPER.items() if figures}


TABLE = Table(
    title="Test accuracy",
    caption="In percent, of the checkpoint that is best on the validation split, beside the figure of "
    'the paper (Qin et al. 2022, "The Devil in Linear Transformer"; its rows from vanilla to skyformer are those '
    "of Chen et al. 2021). In brackets the 95 % interval (Wilson) that the number of test examples leaves to a single "
    "run; several seeds have their standard deviation instead. Bold: the highest of ours, and all whose interval or "
    "deviation overlaps with that of the highest.",
    rows=list(PAPER),
    in_paper=[method for method, figures in PAPER.items() if figures],
    figures={task: Figure(task, score, _papers(task), "higher", interval=interval) for task in TASKS},
    locate=locate,
    means=_means,
    notes=_notes,
)


class LongRangeArena(Experiment):
    """Every method that has a model for the five tasks."""

    name = "lra"
    title = "Long-Range Arena"
    tables = (TABLE,)
    setups: ClassVar = {setup.name: setup.recipes for setup in SETUPS}
    about: ClassVar = {setup.recipes: setup.about for setup in SETUPS}
    unequal: ClassVar = {
        setup.name: f"whose settings were chosen for {setup.chosen_for} alone" for setup in SETUPS if setup.chosen_for
    }
    guesses: ClassVar = {
        "cuda": {"listops": 500.0, "text": 400.0, "image": 120.0, "pathfinder": 250.0, "retrieval": 200.0},
        "cpu": {"listops": 1.0, "text": 1.0, "image": 0.2, "pathfinder": 0.5, "retrieval": 0.5},
    }
    # The guesses are T2's.
    relative_speeds: ClassVar = {
        "cuda": {row: rate / _STEPS_PER_SECOND["t2"] for row, rate in _STEPS_PER_SECOND.items()}
    }

    @cached_property
    def rows(self) -> list[str]:
        presets = set(list_presets())
        return [method for method in METHODS if all(f"{method}-lra-{task}" in presets for task in TASKS)]

    def columns(self, setup: str) -> Sequence[str]:
        return ("pathfinder",) if setup == "long" else TASKS

    def recipe(self, column: str, setup: str) -> str:
        return f"{self.setups[setup]}/{column}"

    def settings(self, row: str, column: str, selection: Selection) -> list[str]:
        setup, model = selection.setup, f"{row}-lra-{column}"
        settings = [f"model.preset={model}"]
        if setup == "fair":
            require_apart(selection.keys_of(row))
        if setup == "skyformer" and row in COPIED:
            settings += as_published(row)
        left_out = load_config(self.recipe(column, setup)).model.position_embedding == "none"
        if left_out and "model.position_embedding" not in selection.keys_of(row) and preset(model).position == "none":
            # Where a recipe made for T2 leaves absolute positions to its rotation, a model without one keeps them.
            settings += ["model.position_embedding=sinusoidal", "model.scale_embedding=true"]
        return settings

    def trials(self, setup: str) -> Trials | None:
        return Trials(self, options, TRIAL_SCHEDULE, TRIAL_SEED) if setup == "fair" else None

    def data_name(self, column: str) -> str:
        return f"lra/{column}"

    def is_prepared_on_demand(self, column: str) -> bool:
        return spec_of(f"lra/{column}").generated


def summary(results: Path) -> str | None:
    """All set-ups in one table without the cost, for the README; None where there are no records.

    Retrieval is left out of the mean: its data are the hardest to come by, and stand-ins are not comparable.
    """
    table = LongRangeArena()
    places = {setup: results / table.folder(setup) for setup in table.setups}
    folders = {setup: records for setup, place in places.items() if (records := read_records(place))}
    if not folders:
        return None
    four = [task for task in TASKS if task != "retrieval"]
    rows = []
    for method in ("t1", "t2"):
        figures = [*(PAPER[method][task] for task in TASKS), sum(PAPER[method][task] for task in four) / len(four)]
        rows.append(["the paper", method, *(f"{figure:.2f}" for figure in figures)])
    for setup, records in folders.items():
        for method in TABLE.rows_that_ran(records):
            accuracies = [TABLE.text(records, method, task) for task in TASKS]
            rows.append([setup, method, *accuracies, TABLE.mean(records, method, four)])
    seeds = {record.seed for records in folders.values() for record in records}
    ours = "one seed" if len(seeds) == 1 else "one seed, or mean and standard deviation over several"
    links = ", ".join(f"[results/{places[setup].name}](results/{places[setup].name}/README.md)" for setup in folders)
    about = " ".join(f"`{setup}`: {table.about[table.setups[setup]]}" for setup in folders)
    return (
        f"**Long-Range Arena** (`transnormer reproduce lra`; test accuracy in percent. Ours: {ours}, of the "
        "checkpoint that is best on the validation split; the paper's: by its scripts, the best test accuracy.\n"
        f"{about}\n{_trivial(results)}{STAND_IN} Not the published data: never compare. {CHANGED} Differs from the "
        f"recipe. What that means, intervals, and everything beside the paper's figures: {links}):\n\n"
        f"{markdown_table(['set-up', 'method', *TASKS, 'mean without retrieval'], rows)}\n"
    )


def _trivial(results: Path) -> str:
    """What is reached without reading the sequences, in a sentence; nothing where nobody computed it."""
    parts = []
    for record in read_all(results):
        rule, share = max(record["baselines"].items(), key=lambda item: item[1])
        parts.append(f"{record['task'].partition('/')[2]} {100 * share:.2f} ({rule})")
    return f"Without reading in order one has: {', '.join(parts)}; [docs/lra.md](docs/lra.md).\n" if parts else ""
