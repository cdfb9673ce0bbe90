"""The claims of the paper, each with what our records say of it. A claim is a pure function of tables and records."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from transnormer.experiments.paper import glue, lm, lra, speed
from transnormer.experiments.table import Table
from transnormer.report.evidence import (
    NOT_ON_EQUAL_TERMS,
    Better,
    Check,
    Sample,
    compare,
    largest_deviation,
    of_one_data_set,
    order,
    sample,
    verdict,
)
from transnormer.report.page import Cell, Claim
from transnormer.report.table_view import TableView

OURS = ("t1", "t2")
SPEED_PAGE, FIGURE_PAGE = "speed.html", "figures.html"
_KIND_BY_MIXERS = {
    frozenset({"linear_elu"}): "1+elu",
    frozenset({"softmax"}): "vanilla",
    frozenset({"diag", "norm"}): "TransNormer",
}
_PAPERS_CORPUS = "wikitext103"  # on which it looks at attention
# Their claims are below; of every other table the claim is its order.
_WITH_CLAIMS = ("glue", "lm", "lra", "mlm")
_SHOWN_REASONS = 12


def paper_claims(
    views: Sequence[TableView], speeds: dict[str, dict[str, Any]], dilution: dict[str, Any] | None = None
) -> list[Claim]:
    """All of them: results, speed, and the two devils with their cures.

    `speeds` are records of `transnormer bench speed` by how they ran, `dilution` is that of `analyse dilution`.
    """
    return [
        *_perplexity(views),
        *_glue(views),
        *_arena(views),
        *_fastest(speeds),
        _dilution(dilution),
        *_orders(views),
    ]


def _perplexity(views: Sequence[TableView]) -> Iterator[Claim]:
    vanilla, worst = lm.PAPER["vanilla"][1], max(lm.PAPER[row][1] for row in OURS)
    said = "; ".join(f"{row} {lm.PAPER[row][1]:.2f}" for row in ("vanilla", *OURS))
    found = [view for view in views if view.experiment.name == "lm" and "test" in view.table.figures]
    others = [row for row in lm.PAPER if row not in (*OURS, "vanilla")]
    yield _claim(
        "TransNormer has the perplexity of a vanilla transformer",
        f"Table 4, WikiText-103, test: {said}. Counted as equal up to the paper's own factor, {worst / vanilla:.3f}.",
        found,
        lambda view: _against(view, ["test"], OURS, ["vanilla"], "lower", worst / vanilla),
    )
    yield _claim(
        "TransNormer has a lower perplexity than every efficient transformer",
        f"Table 4, test: the best of the others is {min(lm.PAPER[row][1] for row in others):.2f}.",
        found,
        lambda view: _against(view, ["test"], OURS, others, "lower"),
        others,
    )


def _glue(views: Sequence[TableView]) -> Iterator[Claim]:
    average = {row: sum(numbers) / len(numbers) for row, numbers in glue.PAPER.items()}
    found = [view for view in views if view.experiment.name == "glue"]
    others = [row for row in glue.PAPER if row not in (*OURS, "vanilla")]
    yield _claim(
        "Fine-tuned on GLUE, T1 is better than a vanilla transformer",
        f"Table 5, mean of seven: t1 {average['t1']:.2f}, vanilla {average['vanilla']:.2f}.",
        found,
        lambda view: _glue_checks(view, ["t1"], ["vanilla"]),
    )
    yield _claim(
        "Fine-tuned on GLUE, TransNormer is better than every efficient transformer",
        f"Table 5, mean of seven: t1 {average['t1']:.2f}, t2 {average['t2']:.2f}, the best of the others "
        f"{max(average[row] for row in others):.2f}.",
        found,
        lambda view: _glue_checks(view, OURS, others),
        others,
    )


def _glue_checks(view: TableView, ours: Sequence[str], others: Sequence[str]) -> list[Check]:
    """By the mean of the paper's seven figures, or of those of them that ran."""
    there = next(iter(view.table.means(view.records).values()))
    some = (f"on {len(there)} of {len(glue.AVERAGED)} figures",) if len(there) < len(glue.AVERAGED) else ()
    checks = _against(view, there, ours, others, "higher")
    return [replace(check, caveats=(*some, *check.caveats)) for check in checks]


def _arena(views: Sequence[TableView]) -> Iterator[Claim]:
    means = {row: sum(tasks.values()) / len(tasks) for row, tasks in lra.PAPER.items() if tasks}
    others = [row for row in means if row not in OURS]
    yield _claim(
        "On the Long-Range Arena TransNormer is better than all others in the mean",
        f"Table 6: t1 {means['t1']:.2f}, t2 {means['t2']:.2f}, the best of the others "
        f"{max(means[row] for row in others):.2f}.",
        [view for view in views if view.experiment.name == "lra"],
        lambda view: _arena_checks(view, others),
        others,
    )


def _arena_checks(view: TableView, others: Sequence[str]) -> list[Check]:
    """By the last of the table's means, which leaves out a task that has stand-in data alone."""
    name, tasks = list(view.table.means(view.records).items())[-1]
    some = () if len(tasks) == len(lra.TASKS) else (f"in the {name}",)
    checks = _against(view, tasks, OURS, others, "higher")
    return [replace(check, caveats=(*some, *check.caveats)) for check in checks]


def _fastest(speeds: dict[str, dict[str, Any]]) -> Iterator[Claim]:
    for kind, word in (("train", "trains"), ("inference", "infers")):
        papers = speed.PAPER[kind]
        others = [row for row in papers if row not in OURS]
        checks: list[Check] = []
        caveats = []
        for name, record in speeds.items():
            measured = {row["method"] for row in record["rows"]}
            if missing := [row for row in others if row not in measured]:
                caveats.append(f"{name}: against {len(others) - len(missing)} of {len(others)} methods")
            checks += _faster_at_each_length(name, record, kind, others)
        outcome = verdict(checks, caveats)
        ends = (speed.LENGTHS[0], speed.LENGTHS[-1])
        said = ", ".join(f"t2 {papers['t2'][length]:g} at {length:,}" for length in ends)
        yield Claim(
            f"TransNormer {word} faster than all others from 1K to 5K tokens",
            f"Table 7, steps a second on an A6000: {said}.",
            outcome.kind,
            outcome.words,
            outcome.caveats,
            _reasons(checks),
            [Cell("speed and kernels", SPEED_PAGE)] if checks else [],
        )


def _faster_at_each_length(name: str, record: dict[str, Any], kind: str, others: Sequence[str]) -> Iterator[Check]:
    """The faster of T1 and T2 against the fastest of the others; what does not fit has no rate."""
    rates = {(row["method"], row["length"]): row.get(f"{kind}_steps_per_second") for row in record["rows"]}
    for length in record["settings"]["lengths"]:
        at = {method: rate for (method, each), rate in rates.items() if each == length and rate}
        ours, theirs = [row for row in OURS if row in at], [row for row in others if row in at]
        if ours and theirs:
            best, rival = max(ours, key=at.__getitem__), max(theirs, key=at.__getitem__)
            holds = at[best] > at[rival]
            yield Check(
                f"{name}, {length:,} tokens: {best} {at[best]:,.0f}, {rival} {at[rival]:,.0f} steps a second: "
                f"{'yes' if holds else 'no'}",
                holds,
            )


def _dilution(record: dict[str, Any] | None) -> Claim:
    """Of each kind of model, known by its mixers, the area under the curve of locally accumulated attention.

    Causal attention has another area than bidirectional, also where it is uniform: each is compared with its like.
    """
    runs, compared = record["runs"] if record else [], ("vanilla", "TransNormer")
    areas: dict[bool, dict[str, list[float]]] = {}
    for row in runs:
        kind = _KIND_BY_MIXERS.get(frozenset(layer["mixer"] for layer in row["layers"]), "other")
        areas.setdefault(row["causal"], {}).setdefault(kind, []).append(row["mean"]["area"])
    checks = []
    for causal, by_kind in areas.items():
        samples = {
            kind: Sample(statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else None)
            for kind, found in by_kind.items()
        }
        linear, how = samples.get("1+elu"), ", causal" if causal else ""
        for kind in compared:
            if linear and kind in samples:
                checks.append(compare(f"{kind}{how}", samples[kind], f"1+elu{how}", linear, "higher"))
    texts = {str(row.get("data", {}).get("digest", row.get("sha256"))) for row in runs}
    caveats = ["with one of two comparisons"] if len(checks) == 1 else []
    corpora = dict.fromkeys(row.get("data", {}).get("meta", {}).get("corpus") for row in runs)
    if others := [name for name in corpora if name not in (None, _PAPERS_CORPUS)]:
        depths = sorted({len(row["layers"]) for row in runs})
        caveats.append(f"on {', '.join(others)}, in models of {' and '.join(map(str, depths))} layers")
    outcome = verdict(checks, [*caveats, *(["on different texts"] if len(texts) > 1 else [])])
    return Claim(
        "Linear attention is diluted over the sequence, vanilla attention and TransNormer attend to neighbours",
        "Figure 2a: the share of attention near a token rises slowly for linear attention, steeply for both others. "
        "Ours: area under that curve; uniform attention has 0.5, where it is causal 0.6.",
        outcome.kind,
        outcome.words,
        outcome.caveats,
        _reasons(checks),
        [Cell("figures", FIGURE_PAGE)],
    )


def _orders(views: Sequence[TableView]) -> Iterator[Claim]:
    """Of each table of an ablation or analysis: the paper's order of its rows."""
    for view in views:
        if view.experiment.name not in _WITH_CLAIMS and (headings := _ordered(view)):
            said = "; ".join(f"{heading}: {_papers_order(view.table, heading)}" for heading in headings)
            rows = list(dict.fromkeys(row for heading in headings for row in view.table.figures[heading].paper))
            yield _claim(
                f"The paper's order of rows: {view.title}", f"Best first, {said}.", [view], _checks_of_order, rows
            )


def _ordered(view: TableView) -> list[str]:
    """Headings under which the paper says what is better; a ratio has the order of what it is made of."""
    figures = view.table.figures.items()
    return [heading for heading, figure in figures if figure.paper and figure.better and not figure.relative_to]


def _papers_order(table: Table, heading: str) -> str:
    """Its rows with its numbers, those that it compares with each other together."""
    figure = table.figures[heading]
    groups = [[row for row in group if row in figure.paper] for group in table.groups or [table.rows]]
    ranked = [sorted(group, key=figure.paper.__getitem__, reverse=figure.better == "higher") for group in groups]
    sign = " > " if figure.better == "higher" else " < "
    return " / ".join(sign.join(f"{row} {figure.text(figure.paper[row])}" for row in rows) for rows in ranked)


def _checks_of_order(view: TableView) -> list[Check]:
    return [check for heading in _ordered(view) for check in order(view.table, view.records, heading)]


def _against(
    view: TableView,
    headings: Sequence[str],
    ours: Sequence[str],
    others: Sequence[str],
    better: Better,
    within: float = 1.0,
) -> list[Check]:
    """Each of ours against each of the others that ran, by the mean of some figures."""
    found = {row: sample(view.table, view.records, row, headings) for row in (*ours, *others)}
    pairs = [(row, found[row], other, found[other]) for row, other in product(ours, others)]
    unknown = largest_deviation(found.values())
    checks = [compare(row, one, other, two, better, within, unknown) for row, one, other, two in pairs if one and two]
    return of_one_data_set(view.table, view.records, headings, checks)


def _claim(
    text: str,
    said: str,
    views: Sequence[TableView],
    checks_of: Callable[[TableView], list[Check]],
    rows: Sequence[str] = (),
) -> Claim:
    """The paper's set-up decides where it ran, otherwise those on equal terms that did, otherwise all that did.

    Another set-up than the paper's is a caveat, as are unequal terms and rows without runs.
    """
    tested = {view.file: (view, checks) for view in views if (checks := checks_of(view))}
    of_papers = [pair for pair in tested.values() if pair[0].is_papers_setup]
    deciding = of_papers or [pair for pair in tested.values() if not pair[0].unequal] or list(tested.values())
    caveats = []
    for view, _ in deciding:
        if not view.is_papers_setup:
            caveats.append(f"in set-up {view.setup}" + (f", {view.unequal}" if view.unequal else ""))
        if view.unequal:
            caveats.append(NOT_ON_EQUAL_TERMS)
        ran = view.table.rows_that_ran(view.records)
        if missing := [row for row in rows if row not in ran]:
            caveats.append(f"with {len(rows) - len(missing)} of {len(rows)} rows of the table")
    outcome = verdict([check for _, checks in deciding for check in checks], caveats)
    reasons = [
        f"{view.title}: {text}" if len(tested) > 1 else text
        for view, checks in sorted(tested.values(), key=lambda pair: not pair[0].is_papers_setup)
        for text in _reasons(checks)
    ]
    links = [Cell(view.title, view.file) for view in views]
    return Claim(text, said, outcome.kind, outcome.words, outcome.caveats, reasons, links)


def _reasons(checks: Sequence[Check]) -> list[str]:
    """What speaks against a claim first, then what is unclear."""
    ranked = sorted(checks, key=lambda check: {False: 0, None: 1, True: 2}[check.holds])
    texts = [check.text for check in ranked[:_SHOWN_REASONS]]
    more = len(ranked) - len(texts)
    return [*texts, f"and {more} more"] if more else texts
