"""Whether the order of a table's rows in the paper is also ours, in a sentence."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations


def order_in_words(paper: Mapping[str, float], ours: Mapping[str, Sequence[float]]) -> str | None:
    """Rows by their numbers in the paper and in ours, one for each seed, and a verdict; None for fewer than two rows.

    It is given over all pairs that the paper has unequal numbers of. Two rows of ours are apart if their means are
    further from each other than their standard deviations over seeds together. A row of one seed has the largest
    deviation that any other row has. Rows that did not run are named.
    """
    rows = [row for row in paper if ours.get(row)]
    if len(rows) < 2:
        return None
    means = {row: _mean(ours[row]) for row in rows}
    deviations = {row: statistics.stdev(ours[row]) for row in rows if len(ours[row]) > 1 and math.isfinite(means[row])}
    largest = max(deviations.values(), default=0.0)
    reversed_, close = [], []
    for first, second in combinations(sorted(rows, key=paper.__getitem__), 2):
        if paper[first] == paper[second]:
            continue
        apart = deviations.get(first, largest) + deviations.get(second, largest)
        pair = f"{first} and {second}"
        if means[first] == means[second] or abs(means[first] - means[second]) <= apart:
            close.append(pair)
        elif means[first] > means[second]:
            reversed_.append(pair)
    if reversed_:
        verdict = f"does not hold: {', '.join(reversed_)} the other way round"
    elif close:
        verdict = f"not decided within the spread of seeds: {', '.join(close)}"
    else:
        verdict = "holds"
    one_seed = "" if deviations else " (one seed, of unknown spread)"
    missing = [row for row in paper if row not in rows]
    not_run = f"; not run: {', '.join(missing)}" if missing else ""
    return f"order of the paper: {_chain(rows, paper)}; ours: {_chain(rows, means)}; {verdict}{one_seed}{not_run}."


def _mean(values: Sequence[float]) -> float:
    """Of perplexities: what is no number is worse than any."""
    return math.inf if any(math.isnan(value) for value in values) else statistics.fmean(values)


def _chain(rows: Iterable[str], values: Mapping[str, float]) -> str:
    """From the lowest up: a < b = c."""
    first, *rest = sorted(rows, key=values.__getitem__)
    text, before = first, first
    for row in rest:
        text += f" {'=' if values[row] == values[before] else '<'} {row}"
        before = row
    return text
