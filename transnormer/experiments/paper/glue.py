"""The GLUE table of the paper, in percent, and the jobs that make it anew from the masked language models of `mlm`.

Qin et al., "The Devil in Linear Transformer", EMNLP 2022 (arXiv:2210.10340), table 5, "Quantitative results of the GLUE
benchmark": MRPC by F1, CoLA by Matthews correlation, all others by accuracy. LS there is long_short, 1+elu linear_elu,
whose CoLA did not converge; its average counts that as 0. It has no RTE.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from transnormer.data.glue.spec import spec_of
from transnormer.experiments.experiment import Cell, Experiment, Selection
from transnormer.experiments.paper import mlm
from transnormer.experiments.record import Record, read_records
from transnormer.experiments.table import Figure, Records, Table, summary_of

# Headings of the seven figures that the paper averages, with the task and the metric of each; then what it has not.
AVERAGED = {
    "MNLI-m": ("mnli", "accuracy"),
    "MNLI-mm": ("mnli", "accuracy_mismatched"),
    "QNLI": ("qnli", "accuracy"),
    "QQP": ("qqp", "accuracy"),
    "SST-2": ("sst2", "accuracy"),
    "MRPC": ("mrpc", "f1"),
    "CoLA": ("cola", "matthews"),
}
FIGURES = {**AVERAGED, "RTE": ("rte", "accuracy")}
PAPER: dict[str, tuple[float, ...]] = {
    "vanilla": (79.37, 79.07, 87.79, 88.04, 90.25, 88.35, 38.63),
    "flash_quad": (78.71, 79.43, 86.36, 88.95, 90.94, 81.73, 41.28),
    "flash": (79.45, 80.08, 87.10, 88.83, 90.71, 82.50, 29.40),
    "long_short": (77.01, 76.78, 84.86, 86.85, 90.25, 82.65, 40.65),
    "performer": (58.85, 59.52, 63.44, 79.10, 81.42, 82.11, 19.41),
    "linear_elu": (74.87, 75.37, 82.59, 86.9, 87.27, 83.03, 0.0),
    "t1": (79.06, 79.93, 87.00, 88.61, 91.17, 84.50, 45.38),
    "t2": (77.28, 78.53, 85.39, 88.56, 90.71, 85.06, 45.90),
}
TASKS = ("cola", "mrpc", "rte", "sst2", "qnli", "qqp", "mnli")
RATES = ("1e-5", "3e-5", "6e-5", "1e-4")
_PRETRAINING, SEED = mlm.MaskedModels(), 42  # one seed of it, whatever that of a fine-tuning
_CAPTION = (
    "In percent, on the development sets: accuracy, for MRPC F1, for CoLA Matthews correlation. Of the four learning "
    "rates the best is shown, by the mean over seeds, and of each run the best epoch. Beside it the figure of the "
    "paper, whose unconverged CoLA counts as 0. RTE is not in its average. The best of ours in bold."
)


def locate(setup: str, record: Record) -> tuple[str, str] | None:
    """Method and task of a record of a set-up; None for any other."""
    method, _, size = record.preset.partition("-")
    family, _, task = record.task.partition("/")
    return (method, task) if family == "glue" and size == mlm.SIZES[setup] else None


def _rate(record: Record) -> float:
    return record.config["optim"]["lr"]


def _percent(name: str) -> Callable[[Record], float | None]:
    def value(record: Record) -> float | None:
        found = record.valid.metrics.get(name) if record.valid else None
        return None if found is None else 100 * found

    return value


def _means(setup: str, records: Records) -> Mapping[str, Sequence[str]]:
    """The paper's average; where some of its figures were never run, that of the others, by its own name."""
    table = TABLES[setup]
    ran = table.rows_that_ran(records)
    there = [each for each in AVERAGED if any(table.value(records, row, each) is not None for row in ran)]
    missing = [each for each in AVERAGED if each not in there]
    return {f"mean without {', '.join(missing)}" if missing and there else "AVG": there or list(AVERAGED)}


def _rates(setup: str, records: Records) -> list[str]:
    table = TABLES[setup]
    chosen = {
        task: [f"{row} {_rate(found[0]):g}" for row in table.rows if (found := table.of(records, row, task))]
        for task in TASKS
    }
    named = "; ".join(f"{task}: {', '.join(rows)}" for task, rows in chosen.items() if rows)
    return [f"Best rates: {named}."] if named else []


def _table(setup: str) -> Table:
    papers = {heading: {row: line[at] for row, line in PAPER.items()} for at, heading in enumerate(AVERAGED)}
    return Table(
        title=f"Models of {setup}",
        caption=_CAPTION,
        rows=[*PAPER, "llama"],
        in_paper=PAPER.keys(),
        figures={
            heading: Figure(task, _percent(metric), papers.get(heading, {}), "higher")
            for heading, (task, metric) in FIGURES.items()
        },
        locate=partial(locate, setup),
        variant=_rate,
        means=partial(_means, setup),
        notes=partial(_rates, setup),
    )


TABLES: Mapping[str, Table] = {setup: _table(setup) for setup in mlm.SIZES}


class Glue(Experiment):
    """A set-up is one of the pre-training; a cell is four jobs a seed, one for each learning rate."""

    name = "glue"
    title = "GLUE"
    tables = tuple(TABLES.values())
    setups: ClassVar = dict.fromkeys(mlm.SIZES, "glue")
    rows = mlm.MaskedModels.rows
    keeps_weights = False
    guesses: ClassVar = {"cuda": dict.fromkeys(TASKS, 150.0), "cpu": dict.fromkeys(TASKS, 0.1)}

    def columns(self, setup: str) -> Sequence[str]:
        return TASKS

    def folder(self, setup: str) -> str:
        return self.home

    def recipe(self, column: str, setup: str) -> str:
        return f"glue/{column}"

    def settings(self, row: str, column: str, selection: Selection) -> list[str]:
        return [f"model.preset={row}-{mlm.SIZES[selection.setup]}"]

    def variants(self, row: str, setup: str) -> Mapping[str, Sequence[str]]:
        return {f"{setup}-{rate}": [f"optim.lr={rate}"] for rate in RATES}

    def parent(self, row: str, column: str, seed: int, selection: Selection) -> Cell:
        return Cell(_PRETRAINING, row, mlm.column_of(selection.setup), SEED, selection.setup)

    def data_name(self, column: str) -> str:
        return f"glue/{column} --tokenizer roberta:GPT2"

    def is_prepared_on_demand(self, column: str) -> bool:
        return False

    def data_origin(self, column: str) -> str:
        return spec_of(f"glue/{column}").about_source


def summary(results: Path) -> str | None:
    """The tables of all set-ups that have records; None where there are none."""
    link = "[results/glue](../results/glue/README.md)"
    about = f"**GLUE** (`transnormer reproduce glue`; marks, rates and cost: {link})."
    return summary_of(TABLES.values(), read_records(results / "glue"), about)
