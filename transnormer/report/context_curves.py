"""Perplexity against context length as a plot, from the files that `transnormer eval --contexts` writes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transnormer.errors import DataError


def draw_contexts(files: Sequence[Path]) -> str:
    """An SVG with two curves a file: dots for positions c/2 to c - 1 of a stream, a thin line for windows of c.

    Of text in bytes the curves are bits per byte, of any other perplexities.
    """
    from transnormer.report.curves import Curve, draw_curves  # matplotlib, which reading does not need

    read = [read_contexts(file) for file in files]
    in_bytes = all(scored["counts"]["bytes"] == scored["counts"]["tokens"] for scored in read)
    curves = []
    for scored in read:
        label = f"{Path(scored.get('run') or scored['model']).name}, trained at {scored['trained_at']}"
        sizes = [row["context"] for row in scored["contexts"]]
        for way in ("windows", "positions"):
            losses = [float(row[way]["loss"]) for row in scored["contexts"]]  # an infinite one is a text
            y = [loss / math.log(2) if in_bytes else math.exp(min(loss, 700)) for loss in losses]
            curves.append(Curve(label, sizes, y, dots=way == "positions"))
    return draw_curves(
        curves,
        x_label="context c in tokens (dots: positions c/2 to c of a stream, lines: windows of c)",
        y_label="bits per byte" if in_bytes else "perplexity",
        doubling=True,
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
