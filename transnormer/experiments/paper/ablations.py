"""The ablations of the paper, each row of which is a model config, and the jobs that make its tables anew.

Qin et al., "The Devil in Linear Transformer", EMNLP 2022 (arXiv:2210.10340), tables 1-3 and 8-12. The first three are
of RoBERTa's layers: LayerNorm, a GELU FFN, no rotation. The others are of TransNormer's: RMSNorm, GLU, LRPE. So
NormAttention alone (table 1, 4.94) and no DiagAttention (table 8, 4.48) are two different models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from transnormer.experiments.experiment import Experiment, Part, Selection
from transnormer.experiments.order import order_in_words
from transnormer.experiments.paper import lm, mlm
from transnormer.experiments.record import Record, read_records
from transnormer.experiments.skipped import skipped_in_words
from transnormer.experiments.table import Figure, Records, Table, cost, metric, summary_of

LAYERS = 12
# By set-up, the columns: masked language models as in the paper, and causal ones.
COLUMNS = {
    "enwiki": ("mlm-enwiki", "enwiki"),
    "wikitext103": ("mlm-wikitext103", "wikitext103"),
    "tiny": ("mlm-python", "python"),
}
BLOCKS = (16, 32, 128, 256)  # beside the usual 64


def _layers(early: str, late: str, early_layers: int = LAYERS // 2) -> str:
    names = [early] * early_layers + [late] * (LAYERS - early_layers)
    return f"model.mixers=[{', '.join(names)}]"


def _pair(mixer: str, first: str, second: str, options: Mapping[str, str]) -> list[str]:
    """Both attentions in every layer."""
    halves = f"first: {first}, first_options: {options[first]}, second: {second}, second_options: {options[second]}"
    return [_layers(mixer, mixer), f"model.mixer_options={{{mixer}: {{{halves}}}}}"]


def _variants(method: str, diag: str, norm: str) -> dict[str, list[str]]:
    """The rows of T1 or T2: what each changes of the method, whose attentions have the options `diag` and `norm`."""
    options = {"diag": diag, "norm": norm}
    rows = {
        "": [],
        **{f"-diag{count}": [_layers("diag", "norm", count)] for count in (0, 3, 9, 12)},
        "-norm-diag": [_layers("norm", "diag")],
        "-ffn": ["model.feed_forward=ffn"],
        **{f"-block{size}": [f"model.mixer_options={{diag: {{block_size: {size}}}}}"] for size in BLOCKS},
        "-sequential": _pair("sequential", "diag", "norm", options),
        "-sequential-norm-diag": _pair("sequential", "norm", "diag", options),
        "-parallel": _pair("parallel", "diag", "norm", options),
    }
    return {f"{method}{suffix}": settings for suffix, settings in rows.items()}


# Rows by name: the method whose preset it begins with, and what it changes of it. One name is one model, so that what
# several tables show runs once.
ROWS: dict[str, tuple[str, list[str]]] = {
    "linear_elu": ("linear_elu", []),
    "linear_elu-unscaled": ("linear_elu", ["model.mixer_options={linear_elu: {scaling: false}}"]),
    "norm": ("linear_elu", [_layers("norm", "norm")]),
    "performer": ("performer", []),
    "vanilla": ("vanilla", []),
    "linear_elu-vanilla": ("linear_elu", [_layers("linear_elu", "softmax")]),
    "vanilla-linear_elu": ("linear_elu", [_layers("softmax", "linear_elu")]),
    **{row: ("t2", changes) for row, changes in _variants("t2", "{kind: softmax}", "{feature_map: 1+elu}").items()},
    **{row: ("t1", changes) for row, changes in _variants("t1", "{kind: rela}", "{feature_map: elu}").items()},
}


@dataclass(frozen=True)
class Ablation:
    """A table of the paper: groups of rows that are compared, by label, each with the row and the paper's number."""

    number: int
    about: str
    groups: Sequence[Mapping[str, tuple[str, float | None]]]

    @property
    def labels(self) -> dict[str, tuple[str, float | None]]:
        """All of its rows."""
        return {label: row for group in self.groups for label, row in group.items()}


def _both(rows: Mapping[str, tuple[str, float | None, float | None]]) -> list[dict[str, tuple[str, float | None]]]:
    """Groups of T1 and of T2, from the suffix of each row and the numbers of both."""
    return [
        {
            f"{method.upper()} {label}": (f"{method}{suffix}", {"t1": t1, "t2": t2}[method])
            for label, (suffix, t1, t2) in rows.items()
        }
        for method in ("t1", "t2")
    ]


ABLATIONS: dict[str, Ablation] = {
    "scaling": Ablation(
        1,
        "linear attention with its denominator, without it, and with a norm instead",
        [
            {
                "1+elu": ("linear_elu", 4.98),
                "1+elu without scaling": ("linear_elu-unscaled", 797.08),
                "NormAttention": ("norm", 4.94),
            }
        ],
    ),
    "gradients": Ablation(
        2,
        "relative standard deviation of the gradient norm over training",
        [
            {
                "1+elu": ("linear_elu", 0.58),
                "Performer": ("performer", 0.47),
                "vanilla": ("vanilla", 0.25),
                "NormAttention": ("norm", 0.20),
            }
        ],
    ),
    "early-late": Ablation(
        3,
        "softmax attention in the early or in the late half of the layers",
        [
            {
                "1+elu, then 1+elu": ("linear_elu", 4.98),
                "1+elu, then vanilla": ("linear_elu-vanilla", 3.90),
                "vanilla, then 1+elu": ("vanilla-linear_elu", 3.76),
            }
        ],
    ),
    "proportion": Ablation(
        8,
        "how many of the 12 layers are DiagAttention, the others NormAttention",
        _both(
            {
                "0 Diag + 12 Norm": ("-diag0", 4.23, 4.48),
                "3 Diag + 9 Norm": ("-diag3", 4.13, 3.83),
                "6 Diag + 6 Norm": ("", 3.82, 3.81),
                "9 Diag + 3 Norm": ("-diag9", 3.87, 3.86),
                "12 Diag + 0 Norm": ("-diag12", 4.75, 4.66),
            }
        ),
    ),
    "order": Ablation(
        9,
        "which of the two attentions comes first",
        _both({"Norm, then Diag": ("-norm-diag", 4.13, 4.21), "Diag, then Norm": ("", 3.82, 3.81)}),
    ),
    "ffn": Ablation(10, "the feed-forward layer", _both({"FFN": ("-ffn", 3.93, 3.93), "GLU": ("", 3.82, 3.81)})),
    "block-size": Ablation(
        11,
        "the block size of DiagAttention",
        _both(
            {
                "blocks of 16": ("-block16", None, None),
                "blocks of 32": ("-block32", 3.92, 3.90),
                "blocks of 64": ("", 3.82, 3.81),
                "blocks of 128": ("-block128", 3.72, 3.69),
                "blocks of 256": ("-block256", None, None),
            }
        ),
    ),
    "combination": Ablation(
        12,
        "both attentions in every layer, one after the other or side by side, or each in its half of the layers",
        _both(
            {
                "in sequence, Diag first": ("-sequential", 4.19, 4.23),
                "in sequence, Norm first": ("-sequential-norm-diag", 4.11, 4.21),
                "parallel": ("-parallel", 3.77, 3.82),
                "TransNormer": ("", 3.82, 3.81),
            }
        ),
    ),
}
_PERPLEXITY = (
    "Validation perplexity of the best checkpoint, of masked tokens or of all, as a causal model; lower is better."
)
_DEVIATION = (
    "Standard deviation of the global gradient norm, before clipping, divided by its mean, over every logged step, "
    "warm-up included; lower is steadier."
)
_BUDGETS = {
    "enwiki": " 12 layers of width 384, 164 M tokens of another corpus: lay the order beside the paper's, no number.",
    "wikitext103": " The paper's recipe: 12 layers of width 768.",
    "tiny": " 12 layers of width 64 for 300 steps on bytes: to see how it works, it decides nothing.",
}


def cell_of(record: Record) -> tuple[str, str] | None:
    """Row and column of a record; None for one of another experiment."""
    folder, _, column = (record.recipe or "").partition("/")
    row = record.name.removeprefix(f"{column}-").removesuffix(f"-{record.seed}")
    return (row, column) if folder == "ablations" and row in ROWS else None


def _locate(setup: str, labels: Mapping[str, str], record: Record) -> tuple[str, str] | None:
    """The label of a record's row in a table, by `labels` of rows, and its column."""
    cell = cell_of(record)
    return (labels[cell[0]], cell[1]) if cell and cell[0] in labels and cell[1] in COLUMNS[setup] else None


def _deviation(record: Record) -> float | None:
    return record.gradient_norm.relative_deviation if record.gradient_norm else None


def _orders(setup: str, name: str, records: Records) -> list[str]:
    """Of each group and column, whether the paper's order is ours; the paper has masked models only.

    There is no order between models of different data.
    """
    table, lines = TABLES[setup, name], []
    for heading, figure in table.figures.items():
        if not table.is_comparable(records, figure.column):
            continue
        for group in ABLATIONS[name].groups:
            paper = {label: number for label, (_, number) in group.items() if number is not None}
            ours = {label: table.numbers(records, label, heading) for label in paper}
            if words := order_in_words(paper, ours):
                lines.append(f"{heading}: {words}")
    return lines


def _notes(setup: str, name: str, records: Records) -> list[str]:
    return [*_orders(setup, name, records), *skipped_in_words(records)]


def _table(setup: str, name: str) -> Table:
    ablation, is_gradients = ABLATIONS[name], name == "gradients"
    paper = {label: number for label, (_, number) in ablation.labels.items() if number is not None}
    value = _deviation if is_gradients else metric("valid", "perplexity")
    masked, causal = COLUMNS[setup]
    return Table(
        title=f"{name} ({setup}): table {ablation.number} of the paper",
        caption=f"{ablation.about[0].upper()}{ablation.about[1:]}. {_DEVIATION if is_gradients else _PERPLEXITY}"
        f"{_BUDGETS[setup]} The best of ours in bold.",
        rows=list(ablation.labels),
        in_paper=paper.keys(),
        figures={"masked": Figure(masked, value, paper, "lower"), "causal": Figure(causal, value, {}, "lower")},
        locate=partial(_locate, setup, {row: label for label, (row, _) in ablation.labels.items()}),
        notes=partial(_notes, setup, name),
        groups=[list(group) for group in ablation.groups],
    )


TABLES: Mapping[tuple[str, str], Table] = {
    (setup, name): _table(setup, name) for setup in COLUMNS for name in ABLATIONS
}


class Ablations(Experiment):
    """Each set-up is a corpus and a width with two columns; their records lie together, as many tables of one page."""

    name = "ablations"
    title = "Ablations"
    tables = tuple(TABLES.values())
    setups: ClassVar = dict.fromkeys(COLUMNS, "ablations")
    rows = tuple(ROWS)
    parts: ClassVar = {
        name: Part(
            rows=list(dict.fromkeys(row for row, _ in ablation.labels.values())),
            tables=[TABLES[setup, name] for setup in COLUMNS],
        )
        for name, ablation in ABLATIONS.items()
    }
    keeps_weights = False
    guesses: ClassVar = {
        "cuda": {"mlm-enwiki": 15.0, "enwiki": 12.0, "mlm-wikitext103": 1.2, "wikitext103": 2.0}
        | dict.fromkeys(COLUMNS["tiny"], 40.0),
        "cpu": dict.fromkeys((*COLUMNS["enwiki"], *COLUMNS["wikitext103"]), 0.003)
        | dict.fromkeys(COLUMNS["tiny"], 5.0),
    }

    def columns(self, setup: str) -> Sequence[str]:
        return COLUMNS[setup]

    def folder(self, setup: str) -> str:
        return self.home

    def recipe(self, column: str, setup: str) -> str:
        return f"ablations/{column}"

    def settings(self, row: str, column: str, selection: Selection) -> list[str]:
        method, changes = ROWS[row]
        masked = column.startswith("mlm-")
        # The FFN of the models without a GLU: RoBERTa's, or that of the causal ones.
        act = [f"model.hidden_act={'gelu' if masked else 'relu'}"] if row.endswith("-ffn") else []
        return [f"model.preset={method}-{'mlm' if masked else 'lm'}", *changes, *act]

    def data_name(self, column: str) -> str:
        return _owner(column).data_name(column) + (" --tokenizer gpt2:GPT2" if column == "enwiki" else "")

    def is_prepared_on_demand(self, column: str) -> bool:
        return column in COLUMNS["tiny"]

    def data_origin(self, column: str) -> str:
        return _owner(column).data_origin(column)

    def cost(self, tables: Sequence[Table], records: Records) -> str:
        """Of every cell once, however many tables show it."""
        columns = [column for setup in COLUMNS.values() for column in setup]
        ran = {cell[1] for record in records if (cell := cell_of(record))}
        figures = {column: Figure(column, metric("valid", "perplexity")) for column in columns if column in ran}
        return cost([Table("", "", list(ROWS), (), figures, cell_of)], records)


def _owner(column: str) -> Experiment:
    """Whose store a column takes."""
    return mlm.MaskedModels() if column.startswith("mlm-") else lm.LanguageModels()


def summary(results: Path) -> str | None:
    """All tables that have records; None where there are none."""
    link = "[results/ablations](../results/ablations/README.md)"
    about = f"**Ablations** (`transnormer reproduce ablations`; orders, marks and cost: {link})."
    return summary_of(TABLES.values(), read_records(results / "ablations"), about)
