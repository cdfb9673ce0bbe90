"""The autoregressive language models of the paper, perplexity and parameters, and the jobs that make its table anew.

Qin et al., "The Devil in Linear Transformer", EMNLP 2022 (arXiv:2210.10340), table 4, "Quantitative results in
autoregressive language modeling": WikiText-103 at word level. LS there is long_short, 1+elu linear_elu.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

from transnormer.config.load import load_config
from transnormer.data.corpora import ORIGINS
from transnormer.experiments.experiment import Experiment, Selection
from transnormer.experiments.record import Record, read_records
from transnormer.experiments.table import Figure, Records, Table, cost_figures, metric, rank_correlation, summary_of
from transnormer.models.presets import SIZES, preset_fields

# Perplexity on the validation and on the test split, parameters in millions.
PAPER: dict[str, tuple[float, float, float]] = {
    "vanilla": (29.63, 31.01, 156.00),
    "long_short": (32.37, 32.59, 159.46),
    "flash_quad": (31.88, 33.50, 153.51),
    "flash": (33.18, 34.63, 153.52),
    "linear_elu": (32.63, 34.25, 156.00),
    "performer": (75.29, 77.65, 156.00),
    "t1": (29.89, 31.35, 155.99),
    "t2": (29.57, 31.01, 155.99),
}
# The paper's; the same models on data and at a cost that are at hand; and bytes, over four times the length.
CORPORA = ("wikitext103", "enwiki", "enwik8")
# Those the comparison is about come first, so that a runner that is stopped early has their rows.
_ROWS = ("t2", "vanilla", "llama", "t1", "linear_elu", "performer", "flash", "flash_quad", "long_short")
_SCORED = "of the checkpoint that is best on the validation split, on windows without overlap"
_CAPTIONS = {
    "wikitext103": f"Perplexity per word {_SCORED}, beside the figure of the paper; lower is better.",
    "enwiki": f"Perplexity per token of GPT-2 {_SCORED}; equal tokens in equal order for every method. Its data are "
    "not the paper's: compare ratios, that is a method's perplexity divided by vanilla's, and nothing else.",
    "enwik8": f"Bits per byte {_SCORED} of 2,048 bytes. Not in the paper.",
}


def locate(record: Record) -> tuple[str, str] | None:
    """Method and corpus of a record; None for one of another experiment."""
    method, _, size = record.preset.rpartition("-")
    folder, _, corpus = (record.recipe or "").partition("/")
    return (method, corpus) if (folder, size) == ("lm", "lm") and corpus in CORPORA else None


def _figures(corpus: str) -> dict[str, Figure]:
    """Both splits, both relative to vanilla, then size and cost."""
    name, digits = ("bits_per_byte", 3) if corpus == "enwik8" else ("perplexity", 2)
    splits: tuple[Literal["valid", "test"], ...] = ("valid", "test")
    figures: dict[str, Figure] = {
        split: Figure(corpus, metric(split, name), _papers(index, corpus), "lower", digits)
        for index, split in enumerate(splits)
    }
    ratios = {
        _ratio(split): Figure(corpus, metric(split, name), _papers(index, corpus), "lower", 3, relative_to="vanilla")
        for index, split in enumerate(splits)
    }
    return {**figures, **ratios, **cost_figures(corpus, _papers(2, corpus))}


def _ratio(split: str) -> str:
    return f"{split} / vanilla"


def _papers(index: int, corpus: str) -> dict[str, float]:
    return {} if corpus == "enwik8" else {method: figures[index] for method, figures in PAPER.items()}


def _order(corpus: str, records: Records) -> list[str]:
    """How our order of the methods agrees with the paper's, by each split; there is none between different data."""
    table, lines = TABLES[corpus], []
    if not table.is_comparable(records, corpus):
        return []
    for split in ("valid", "test"):
        heading = _ratio(split)
        ours = {row: table.value(records, row, heading) for row in table.rows_that_ran(records)}
        both = {
            row: (value, paper)
            for row, value in ours.items()
            if value is not None and (paper := table.figures[heading].papers(row)) is not None
        }
        if len(both) > 2 and (rho := rank_correlation(*zip(*both.values(), strict=True))) is not None:
            order = " < ".join(sorted(both, key=lambda row: both[row][0]))
            lines.append(f"Rank correlation (Spearman) with the paper's order, {split}: {rho:.2f} ({order}).")
    return lines


TABLES: Mapping[str, Table] = {
    corpus: Table(
        title=corpus,
        caption=f"{_CAPTIONS[corpus]} The best of ours in bold.",
        rows=[*PAPER, "llama"],
        in_paper=PAPER.keys(),
        figures=_figures(corpus),
        locate=locate,
        notes=partial(_order, corpus),
    )
    for corpus in CORPORA
}


class LanguageModels(Experiment):
    """Each corpus is a set-up with one column; their records lie together, and the page has a table of each."""

    name = "lm"
    title = "Autoregressive language modelling"
    tables = tuple(TABLES.values())
    setups: ClassVar = dict.fromkeys(CORPORA, "lm")
    rows = _ROWS
    guesses: ClassVar = {
        "cuda": {"wikitext103": 5.0, "enwiki": 18.0, "enwik8": 15.0},
        "cpu": {"wikitext103": 0.002, "enwiki": 0.005, "enwik8": 0.005},
    }

    def columns(self, setup: str) -> Sequence[str]:
        return (setup,)

    def folder(self, setup: str) -> str:
        return self.home

    def recipe(self, column: str, setup: str) -> str:
        return f"lm/{column}"

    def settings(self, row: str, column: str, selection: Selection) -> list[str]:
        settings, layers = [f"model.preset={row}-lm"], load_config(self.recipe(column, column)).model.num_hidden_layers
        own, usual = preset_fields(f"{row}-lm").num_hidden_layers, SIZES["lm"]["num_hidden_layers"]
        if layers and own != usual and "model.num_hidden_layers" not in selection.keys_of(row):
            # Methods that replace attention and feed-forward at once have more, thinner layers, at any size.
            settings.append(f"model.num_hidden_layers={layers * own // usual}")
        return settings

    def is_prepared_on_demand(self, column: str) -> bool:
        return False

    def data_origin(self, column: str) -> str:
        return ORIGINS[column]


def summary(results: Path) -> str | None:
    """The tables of all corpora that have records; None where there are none."""
    link = "[results/lm](../results/lm/README.md)"
    about = f"**Language models** (`transnormer reproduce lm`; marks and cost: {link})."
    return summary_of(TABLES.values(), read_records(results / "lm"), about)


def headline(results: Path) -> str | None:
    """What a reader of the README needs of `enwiki`: validation, its ratio beside the paper's, and speed."""
    table, records = TABLES["enwiki"], read_records(results / "lm")
    if not table.rows_that_ran(records):
        return None
    shown = {"valid": replace(table.figures["valid"], paper={})}
    shown |= {heading: table.figures[heading] for heading in (_ratio("valid"), "tokens/s", "GiB")}
    return (
        "**Language models** (English Wikipedia in the place of WikiText-103, 6 layers of width 512, 180 M tokens of "
        "GPT-2, the same for every method; `transnormer reproduce lm --setup enwiki`; perplexity of the validation "
        f"split on windows of 512. {' '.join(table.notes(records)[:1])} Both splits, parameters, seeds, marks: "
        "[results/lm](results/lm/README.md)):\n\n"
        f"{replace(table, figures=shown).markdown(records)}\n"
    )
