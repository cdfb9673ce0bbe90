"""The speed table as the paper prints it, and how each method's time grows with the length."""

from __future__ import annotations

from typing import Any

from transnormer.bench.scaling import exponent

_KINDS = ("train", "inference")


def exponents(rows: list[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Per method, the p of time ~ T^p in training and inference, over the lengths that fitted."""
    slopes = {}
    for method in dict.fromkeys(row["method"] for row in rows):
        cells = [row for row in rows if row["method"] == method and not row.get("out_of_memory")]
        lengths = [row["length"] for row in cells]
        slopes[method] = {
            kind: exponent(lengths, [1 / row[f"{kind}_steps_per_second"] for row in cells]) for kind in _KINDS
        }
    return slopes


def markdown(rows: list[dict[str, Any]], slopes: dict[str, dict[str, float | None]]) -> str:
    """Methods down, lengths across; a dash where memory ran out; the best of each column in bold."""
    lengths = sorted({row["length"] for row in rows})
    cells = {(row["method"], row["length"]): row for row in rows}
    lines = []
    for kind in _KINDS:
        key = f"{kind}_steps_per_second"
        best = {length: max(cells[method, length].get(key, 0) for method in slopes) for length in lengths}
        memory = any(row.get(f"{kind}_peak_bytes") for row in rows)
        header = [f"{kind}, steps/s", *(f"{length:,}" for length in lengths), "p of T^p"]
        if memory:
            header.append(f"peak GiB at {lengths[-1]:,}")
        lines += ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
        for method in slopes:
            values = []
            for length in lengths:
                value = cells[method, length].get(key)
                text = "–" if value is None else f"{value:.2f}"
                values.append(f"**{text}**" if value is not None and value == best[length] else text)
            slope = slopes[method][kind]
            values.append("–" if slope is None else f"{slope:.2f}")
            if memory:
                peak = cells[method, lengths[-1]].get(f"{kind}_peak_bytes")
                values.append("–" if peak is None else f"{peak / 2**30:.2f}")
            lines.append("| " + " | ".join([method, *values]) + " |")
        lines.append("")
    return "\n".join(lines).rstrip()
