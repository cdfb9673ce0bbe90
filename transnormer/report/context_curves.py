"""Perplexity against context length as a plot and a table, from the files that `transnormer eval --contexts` writes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transnormer.errors import DataError
from transnormer.experiments.table import NONE
from transnormer.markdown import markdown_table
from transnormer.report.curves import Curve, draw_curves

_WAYS = ("windows", "positions")
_WIDE = 10  # the ratio of perplexities from which on the small ones would be one flat line


def draw_contexts(files: Sequence[Path]) -> str:
    """An SVG with two curves a file: dots for positions c/2 to c - 1 of a stream, a thin line for windows of c.

    Of text in bytes the curves are bits per byte, of any other perplexities, on a log axis where they are far apart.
    """
    read = [read_contexts(file) for file in files]
    in_bytes = all(map(_is_in_bytes, read))
    curves = []
    for scored in read:
        label = f"{Path(scored.get('run') or scored['model']).name}, trained at {scored['trained_at']}"
        sizes = [row["context"] for row in scored["contexts"]]
        for way in _WAYS:
            curves.append(Curve(label, sizes, _values(scored, way, in_bytes), dots=way == "positions"))
    there = [value for curve in curves for value in curve.y if math.isfinite(value)]
    return draw_curves(
        curves,
        x_label="context c in tokens (dots: positions c/2 to c of a stream, lines: windows of c)",
        y_label="bits per byte" if in_bytes else "perplexity",
        doubling=True,
        log_y=max(there, default=0) > _WIDE * min(there, default=0),
    )


def contexts(results: Path) -> str | None:
    """The curves of results/contexts as one table, with their plots; None where there are none."""
    files = sorted((results / "contexts").glob("*.json"))
    if not files:
        return None
    columns, cells = ["context c"], {}
    for file in files:
        scored = read_contexts(file)
        in_bytes = _is_in_bytes(scored)
        of = f"{scored['data']['store']}, {scored['split']}" if "split" in scored else "a text"
        unit = "bits per byte" if in_bytes else "perplexity"
        columns.append(f"{file.stem} (trained at {scored['trained_at']:,}; {of}; {unit})")
        both = zip(*(_values(scored, way, in_bytes) for way in _WAYS), strict=True)
        for row, values in zip(scored["contexts"], both, strict=True):
            cells[row["context"], file] = " / ".join(f"{value:.{3 if in_bytes else 2}f}" for value in values)
    rows = [[f"{c:,}", *(cells.get((c, file), NONE) for file in files)] for c in sorted({c for c, _ in cells})]
    plots = [file.with_suffix(".svg") for file in files if file.with_suffix(".svg").is_file()]
    images = "".join(f"\n![{plot.stem}](../{plot.relative_to(results.parent).as_posix()})\n" for plot in plots)
    return (
        "**Perplexity against context length** (`transnormer eval RUN --contexts ...`; windows of c / positions c/2 to "
        "c - 1 of a stream, the same targets at every c: [evaluation](evaluation.md)):\n\n"
        f"{markdown_table(columns, rows)}\n{images}"
    )


def read_contexts(file: Path) -> dict[str, Any]:
    """What `transnormer eval --contexts` wrote; a DataError names a file that is something else."""
    hint = "give a file that `transnormer eval RUN --contexts ...` wrote"
    try:
        scored = json.loads(file.read_text(encoding="utf-8"))
        _ = [row["positions"]["loss"] for row in scored["contexts"]], scored["trained_at"], scored["counts"]["bytes"]
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}", hint) from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} holds no context curve", hint) from error
    return scored


def _is_in_bytes(scored: dict[str, Any]) -> bool:
    return scored["counts"]["bytes"] == scored["counts"]["tokens"]


def _values(scored: dict[str, Any], way: str, in_bytes: bool) -> list[float]:
    """Bits per byte, or perplexities, infinite where no float holds them."""
    losses = [float(row[way]["loss"]) for row in scored["contexts"]]  # JSON has an infinite one as a text
    return [loss / math.log(2) if in_bytes else math.exp(loss) if loss < 700 else math.inf for loss in losses]
