"""Few combinations of options that still hold every pair of their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any

Row = dict[str, Any]


def interactions(factors: Mapping[str, Sequence[Any]], strength: int) -> set[tuple[tuple[str, Any], ...]]:
    """All combinations of values of any `strength` factors."""
    return {
        tuple(zip(names, values, strict=True))
        for names in combinations(factors, strength)
        for values in product(*(factors[name] for name in names))
    }


def covering(factors: Mapping[str, Sequence[Any]], strength: int, together: Sequence[str] = ()) -> list[Row]:
    """Rows that hold every interaction of `strength` factors, and every combination of those named in `together`.

    Greedy: a row begins with an interaction that is still missing and takes, factor by factor, the value that brings
    most of the others.
    """
    missing = interactions(factors, strength) | interactions({name: factors[name] for name in together}, len(together))
    rows: list[Row] = []
    while missing:
        # The widest first: pairs come with triples, not the other way round.
        row: Row = dict(max(sorted(missing, key=str), key=len))
        for name, values in factors.items():
            if name not in row:
                used = {value: sum(r[name] == value for r in rows) for value in values}
                row[name] = max(values, key=lambda v: (len(_held({**row, name: v}, missing)), -used[v]))
        missing -= _held(row, missing)
        rows.append({name: row[name] for name in factors})
    return rows


def _held(row: Row, wanted: set[tuple[tuple[str, Any], ...]]) -> set[tuple[tuple[str, Any], ...]]:
    return {each for each in wanted if all(row.get(name, _NOTHING) == value for name, value in each)}


_NOTHING = object()
