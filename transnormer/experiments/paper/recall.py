"""Associative recall (MQAR, Arora et al. 2023) by the number of pairs: not in the paper, but the price of what it does.

A linear attention keeps a state of fixed size, and what does not fit is forgotten; softmax attention keeps all keys. So
accuracy over the number of pairs is the honest picture beside the tables in which both are equally good.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from transnormer.experiments.experiment import Experiment, Selection
from transnormer.experiments.record import Record
from transnormer.experiments.table import Figure, Table

PAIRS = (4, 8, 16, 32)
_ROWS = ("t2", "llama", "vanilla", "linear_elu", "t1", "performer", "cosformer")
_RECIPE, _SIZE = "recall/mqar", "tiny"


def column_of(pairs: int) -> str:
    """What the jobs of so many pairs are called."""
    return f"pairs{pairs}"


def locate(record: Record) -> tuple[str, str] | None:
    """Method and column of a record; None for one of another experiment."""
    method, _, size = record.preset.partition("-")
    if record.recipe != _RECIPE or size != _SIZE:
        return None
    return method, column_of(record.config["recall"]["pairs"])


TABLE = Table(
    title="Associative recall",
    caption="Test accuracy in percent: the share of keys whose value a model finds again, each asked for once behind "
    "so many pairs of keys and values, in models of two layers of width 64. All have the learning rate that was tried "
    "with llama alone: no comparison on equal terms. The best of ours in bold.",
    rows=_ROWS,
    in_paper=(),
    figures={f"{pairs} pairs": Figure(column_of(pairs), lambda record: record.score, {}, "higher") for pairs in PAIRS},
    locate=locate,
)


class Recall(Experiment):
    """One column for each number of pairs."""

    name = "recall"
    title = "Associative recall"
    tables = (TABLE,)
    setups: ClassVar = {"mqar": "recall"}
    rows = _ROWS
    guesses: ClassVar = {
        device: dict.fromkeys(map(column_of, PAIRS), speed) for device, speed in (("cuda", 100.0), ("cpu", 4.0))
    }

    def columns(self, setup: str) -> Sequence[str]:
        return tuple(map(column_of, PAIRS))

    def recipe(self, column: str, setup: str) -> str:
        return _RECIPE

    def settings(self, row: str, column: str, selection: Selection) -> list[str]:
        pairs = int(column.removeprefix("pairs"))
        # As many keys again as are asked for, so that a key says nothing about its value.
        return [f"model.preset={row}-{_SIZE}", f"recall.pairs={pairs}", f"recall.vocab_size={max(64, 4 * pairs)}"]

    def data_name(self, column: str) -> str:
        return _RECIPE
