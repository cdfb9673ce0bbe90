"""The pre-training behind the paper's GLUE table: masked language models, and the jobs that make them anew.

Qin et al., "The Devil in Linear Transformer", EMNLP 2022 (arXiv:2210.10340). Its table 5 has the methods and their
parameters; perplexities of masked tokens it prints for T1 and T2 alone, in its ablations (both for 6 + 6 layers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from transnormer.data.corpora import ORIGINS
from transnormer.experiments.experiment import Experiment, Selection
from transnormer.experiments.record import Record, read_records
from transnormer.experiments.table import Figure, Table, cost_figures, metric, summary_of

# Parameters in millions. The 124.0 of 1+elu is vanilla's 124.70 with a digit lost: both have the same layers.
PARAMETERS: dict[str, float] = {
    "vanilla": 124.70,
    "flash_quad": 127.11,
    "flash": 127.12,
    "long_short": 128.28,
    "performer": 124.70,
    "linear_elu": 124.0,
    "t1": 124.67,
    "t2": 124.67,
}
PERPLEXITY = {"t1": 3.82, "t2": 3.81}
# By corpus, the size of its models: the paper's, and a smaller one for data and a cost that are at hand.
SIZES = {"wikitext103": "mlm", "enwiki": "mlm-small"}
# Those the comparison is about come first, so that a runner that is stopped early has their rows.
_ROWS = ("t2", "vanilla", "llama", "t1", "linear_elu", "performer", "flash_quad", "flash", "long_short")
_SCORED = (
    "Perplexity of masked tokens (15 %, the same ones for every model) on the validation split, of the checkpoint that "
    "is best there; lower is better."
)
_CAPTIONS = {
    "wikitext103": f"{_SCORED} The paper's recipe: 12 layers of width 768, 50,000 updates of 262,144 tokens.",
    "enwiki": f"{_SCORED} Models of 6 layers of width 512, equal tokens in equal order for every method. Data and "
    "budget are not the paper's: compare ratios, that is a method's perplexity divided by vanilla's, and nothing else.",
}


def column_of(setup: str) -> str:
    """The one column of a set-up; its store has another tokenizer than that of the causal models, so another name."""
    return f"mlm-{setup}"


def locate(record: Record) -> tuple[str, str] | None:
    """Method and column of a record; None for one of another experiment."""
    method, _, size = record.preset.partition("-")
    folder, _, corpus = (record.recipe or "").partition("/")
    return (method, column_of(corpus)) if folder == "mlm" and SIZES.get(corpus) == size else None


def _table(corpus: str) -> Table:
    column, perplexity, is_papers = column_of(corpus), metric("valid", "perplexity"), corpus == "wikitext103"
    figures = {
        "perplexity": Figure(column, perplexity, PERPLEXITY if is_papers else {}, "lower"),
        "/ vanilla": Figure(column, perplexity, {}, "lower", 3, relative_to="vanilla"),
        **cost_figures(column, PARAMETERS if is_papers else {}),
    }
    return Table(
        title=corpus,
        caption=f"{_CAPTIONS[corpus]} The best of ours in bold.",
        rows=[*PARAMETERS, "llama"],
        in_paper=PARAMETERS.keys(),
        figures=figures,
        locate=locate,
    )


TABLES: Mapping[str, Table] = {corpus: _table(corpus) for corpus in SIZES}


class MaskedModels(Experiment):
    """Each corpus is a set-up with one column; their records lie together, and the page has a table of each."""

    name = "mlm"
    title = "Masked language modelling"
    tables = tuple(TABLES.values())
    setups: ClassVar = dict.fromkeys(SIZES, "mlm")
    rows = _ROWS
    guesses: ClassVar = {
        "cuda": {"mlm-wikitext103": 1.6, "mlm-enwiki": 25.0},
        "cpu": {"mlm-wikitext103": 0.001, "mlm-enwiki": 0.004},
    }

    def columns(self, setup: str) -> Sequence[str]:
        return (column_of(setup),)

    def folder(self, setup: str) -> str:
        return self.home

    def recipe(self, column: str, setup: str) -> str:
        return f"mlm/{setup}"

    def settings(self, row: str, column: str, selection: Selection) -> list[str]:
        return [f"model.preset={row}-{SIZES[selection.setup]}"]

    def data_name(self, column: str) -> str:
        return column.removeprefix("mlm-") + " --tokenizer roberta:GPT2"

    def is_prepared_on_demand(self, column: str) -> bool:
        return False

    def data_origin(self, column: str) -> str:
        gpt2 = "GPT2 is a folder with GPT-2's vocab.json and merges.txt (Hugging Face: openai-community/gpt2)"
        return f"{ORIGINS[column.removeprefix('mlm-')]}; {gpt2}"


def summary(results: Path) -> str | None:
    """The tables of all corpora that have records; None where there are none."""
    link = "[results/mlm](../results/mlm/README.md)"
    about = f"**Masked language models** (`transnormer reproduce mlm`; marks and cost: {link})."
    return summary_of(TABLES.values(), read_records(results / "mlm"), about)
