"""The learning rates of the demo: each of its models at every rate, so that none is shown at another's best.

Not in the paper, whose rate of 5e-4 is for models 200 times as large. `transnormer demo` trains each model at the rate
that is best here, on the validation split.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from transnormer.experiments.demo import METHODS
from transnormer.experiments.experiment import Experiment, Selection
from transnormer.experiments.record import Record, read_records
from transnormer.experiments.table import Figure, Records, Table, metric, summary_of

RATES = ("2e-3", "4e-3", "8e-3")


def locate(record: Record) -> tuple[str, str] | None:
    """Rate and method of a record, for rates are what is compared; None for one of another experiment."""
    method, _, size = record.preset.rpartition("-")
    rates = {float(rate): rate for rate in RATES}
    rate = rates.get(record.config["optim"]["lr"])
    return (rate, method) if record.recipe == "demo" and size == "tiny" and rate else None


def best_rates(records: Records) -> dict[str, str]:
    """The rate of each method at which the validation split has the fewest bits per byte."""
    found = {}
    for method in METHODS:
        scores = {rate: score for rate in RATES if (score := TABLE.value(records, rate, method)) is not None}
        if scores:
            found[method] = min(scores, key=lambda rate: scores[rate])
    return found


def _chosen(records: Records) -> list[str]:
    return [f"The demo trains at {', '.join(f'{rate} ({row})' for row, rate in best_rates(records).items())}."]


TABLE = Table(
    title="Bits per byte by learning rate",
    caption="On the validation split, after the 300 steps of the recipe `demo`; lower is better. The best rate of each "
    "method in bold.",
    rows=RATES,
    in_paper=RATES,
    figures={method: Figure(method, metric("valid", "bits_per_byte"), {}, "lower", 3) for method in METHODS},
    locate=locate,
    notes=_chosen,
    row_is="rate",
)


class DemoRates(Experiment):
    """A column of its jobs is a rate, which in the table is a row: the best in bold is the best rate of a method."""

    name = "demo-rates"
    title = "The learning rates of the demo"
    tables = (TABLE,)
    setups: ClassVar = {"demo": "demo"}
    rows = METHODS
    guesses: ClassVar = {"cuda": dict.fromkeys(RATES, 50.0), "cpu": dict.fromkeys(RATES, 3.0)}

    def columns(self, setup: str) -> Sequence[str]:
        return RATES

    def recipe(self, column: str, setup: str) -> str:
        return "demo"

    def settings(self, row: str, column: str, selection: Selection) -> list[str]:
        return [f"model.preset={row}-tiny", f"optim.lr={column}"]


def summary(results: Path) -> str | None:
    """The table; None where there are no records."""
    about = "**The learning rates of the demo** (`transnormer reproduce demo-rates --seeds 0`)."
    return summary_of([TABLE], read_records(results / "demo-rates"), about)
