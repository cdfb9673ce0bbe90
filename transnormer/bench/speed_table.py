"""The speed table as the paper prints it, and how each method's time grows with the length."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from transnormer.markdown import markdown_table

_KINDS = ("train", "inference")
Row = dict[str, Any]


def exponents(rows: list[Row]) -> dict[str, dict[str, float | None]]:
    """Per method, the p of time ~ T^p in training and inference, over the lengths that fitted."""
    slopes: dict[str, dict[str, float | None]] = {}
    for method in dict.fromkeys(row["method"] for row in rows):
        slopes[method] = {}
        for kind in _KINDS:
            key = f"{kind}_steps_per_second"
            cells = [row for row in rows if row["method"] == method and key in row]
            slopes[method][kind] = exponent([row["length"] for row in cells], [1 / row[key] for row in cells])
    return slopes


def exponent(lengths: Sequence[int], costs: Sequence[float]) -> float | None:
    """The p of cost ~ T^p: the slope of the least-squares line through (log T, log cost); None for less than two."""
    if len(lengths) < 2:
        return None
    return statistics.linear_regression([*map(math.log, lengths)], [*map(math.log, costs)]).slope


def markdown(rows: list[Row], slopes: dict[str, dict[str, float | None]]) -> str:
    """Methods down, lengths across; a dash where memory ran out; the best of each column in bold.

    For language models a table of tokens per second follows; then, what could not run in the execution asked for.
    """
    parts = [_steps(rows, slopes, kind) for kind in _KINDS]
    if any("train_tokens_per_second" in row for row in rows):
        parts.append(_tokens(rows))
    if remarks := _other_executions(rows):
        parts.append("\n".join(remarks))
    return "\n\n".join(parts)


def _steps(rows: list[Row], slopes: dict[str, dict[str, float | None]], kind: str) -> str:
    lengths = sorted({row["length"] for row in rows})
    cells = {(row["method"], row["length"]): row for row in rows}
    key = f"{kind}_steps_per_second"
    best = {length: max(cells[method, length].get(key, 0) for method in slopes) for length in lengths}
    memory = any(row.get(f"{kind}_peak_bytes") for row in rows)
    header = [f"{kind}, steps/s", *(f"{length:,}" for length in lengths), "p of T^p"]
    if memory:
        header.append(f"peak GiB at {lengths[-1]:,}")
    lines = []
    for method in slopes:
        values = []
        for length in lengths:
            value = cells[method, length].get(key)
            text = "–" if value is None else f"{value:.2f}"
            values.append(f"**{text}**" if value is not None and value == best[length] else text)
        slope = slopes[method][kind]
        values.append("–" if slope is None else f"{slope:.2f}")
        if memory:
            values.append(_gib(cells[method, lengths[-1]].get(f"{kind}_peak_bytes")))
        lines.append([method, *values])
    return markdown_table(header, lines)


def _tokens(rows: list[Row]) -> str:
    """What a language model trains on per second: tokens, the share of the device's peak, and the peak of memory."""
    header = ["train", "T", "tokens/s", "model FLOPs/s", "utilisation", "peak GiB"]
    lines = []
    for row in rows:
        rate = row.get("train_tokens_per_second")
        flops, share = row.get("train_flops_per_step"), row.get("train_utilisation")
        lines.append(
            [
                row["method"],
                f"{row['length']:,}",
                "–" if rate is None else f"{rate:,.0f}",
                "–" if flops is None else f"{flops * row['train_steps_per_second'] / 1e12:.4g} T",
                "–" if share is None else f"{share:.1%}",
                _gib(row.get("train_peak_bytes")),
            ]
        )
    return markdown_table(header, lines)


def _other_executions(rows: list[Row]) -> list[str]:
    """One line for each method and kind that ran in another execution than was asked for, or not at all, and why."""
    lengths_of: dict[str, list[str]] = {}
    for row in rows:
        for kind in _KINDS:
            if reasons := row.get(f"{kind}_instead_of"):
                came_to = row.get(f"{kind}_execution")
                how = f"failed ({row[f'{kind}_failed']})" if came_to is None else came_to
                why = "; ".join(f"as {execution}: {reason}" for execution, reason in reasons.items())
                lengths_of.setdefault(f"{row['method']}, {kind}: {how}. Not {why}", []).append(f"{row['length']:,}")
    return [f"- {text} (T = {', '.join(lengths)})" for text, lengths in lengths_of.items()]


def _gib(size: int | None) -> str:
    return "–" if size is None else f"{size / 2**30:.2f}"
