"""Every table and figure of the paper by its number: which command makes it anew, and what records there are of it.

An entry is an experiment of `transnormer reproduce`, one of its tables where it has several, or another command.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from transnormer.errors import ConfigError, DataError, did_you_mean
from transnormer.experiments.experiment import Experiment
from transnormer.experiments.paper import TABLES, experiment
from transnormer.experiments.record import Record, machine_of, read_records

ALL = "all"  # every table that is an experiment, one after the other


@dataclass(frozen=True)
class Entry:
    """`experiment` and `table` are names of `reproduce`; where there is none, `made_by` is the command itself."""

    about: str
    experiment: str | None = None
    table: str | None = None
    made_by: str = ""
    files: str = ""  # the records that `made_by` writes, as a pattern in results/

    @property
    def command(self) -> str:
        """What to type."""
        if self.experiment is None:
            return self.made_by
        return f"transnormer reproduce {self.experiment}" + (f" --table {self.table}" if self.table else "")

    def records_in_words(self, results: Path) -> str:
        """'2 (python)', by the label of their data; else by the machine they are of, or what a figure is drawn from."""
        if self.experiment is None:
            labels = Counter(self._origin(path) for path in sorted(results.glob(self.files)))
        else:
            labels = Counter(record.data.label for record in self._records(results))
        named = ", ".join(f"{label} {count}" if len(labels) > 1 else label for label, count in labels.items())
        return f"{labels.total()} ({named})" if labels else "none"

    def _origin(self, path: Path) -> str:
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if "sources" in record:
                return " and ".join(record["sources"])
            return machine_of(record)
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is damaged", f"restore it, or make it anew: `{self.command}`") from error

    def _records(self, results: Path) -> list[Record]:
        assert self.experiment is not None
        owner = experiment(self.experiment)
        folders = dict.fromkeys(owner.folder(setup) for setup in owner.setups)
        records = [record for folder in folders for record in read_records(results / folder)]
        tables = owner.parts[self.table].tables if self.table else owner.tables
        return [record for record in records if any(table.locate(record) for table in tables)]


_FIGURES = "transnormer reproduce figures"
CONTENTS: dict[str, Entry] = {
    "table1": Entry("linear attention without its denominator", "ablations", "scaling"),
    "table2": Entry("relative deviation of gradients", "ablations", "gradients"),
    "table3": Entry("softmax attention in early or late layers", "ablations", "early-late"),
    "table4": Entry("autoregressive language models", "lm"),
    "table5": Entry("GLUE, from the models of `mlm`", "glue"),
    "table6": Entry("Long-Range Arena", "lra"),
    "table7": Entry("speed", made_by="transnormer bench speed --setting paper", files="bench/speed-paper*.json"),
    "table8": Entry("proportion of the two attentions", "ablations", "proportion"),
    "table9": Entry("order of the two attentions", "ablations", "order"),
    "table10": Entry("GLU or FFN", "ablations", "ffn"),
    "table11": Entry("block size", "ablations", "block-size"),
    "table12": Entry("both attentions in one layer", "ablations", "combination"),
    "figure1": Entry("score against speed and memory", made_by=_FIGURES, files="figures/figure1.json"),
    "figure2a": Entry("attention within neighbourhoods", made_by=_FIGURES, files="figures/figure2a.json"),
    "figure2b": Entry("attention matrices", made_by=_FIGURES, files="figures/figure2b.json"),
}


def entries() -> dict[str, Entry]:
    """By number, then the experiments by name, of which some are no table or several."""
    named = {name: Entry(about, name) for name, (_, _, about) in sorted(TABLES.items())}
    return {**CONTENTS, **named}


def experiments_of_the_paper() -> list[Experiment]:
    """Those that make its tables, without what only serves them: `glue` runs what it needs of `mlm`."""
    names = dict.fromkeys(entry.experiment for entry in CONTENTS.values() if entry.experiment)
    return [experiment(name) for name in names]


def find(name: str) -> Entry:
    """What `reproduce` is asked for; an error names what is near, or all there is."""
    known = entries()
    if name not in known:
        raise ConfigError(
            f"no table '{name}'", hint=f"{did_you_mean(name, [*known, ALL])} (see `transnormer list tables`)"
        )
    entry = known[name]
    if entry.experiment is None:
        raise ConfigError(f"{name} is made by another command", hint=f"`{entry.command}`")
    return entry
