"""The decode table: two models side by side at each context and batch, and what the context costs each."""

from __future__ import annotations

from typing import Any

from transnormer.markdown import markdown_table

Measured = dict[tuple[str, int, int], dict[str, Any]]


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per batch and context, how many times the second preset's tokens per second the first one makes."""
    measured, (first, second) = _by_setting(rows), _presets(rows)
    found = []
    for batch, context in _settings(rows):
        ours, theirs = (measured[name, batch, context].get("tokens_per_second") for name in (first, second))
        found.append({"batch": batch, "context": context, "ratio": ours / theirs if ours and theirs else None})
    return found


def growth(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per preset and batch, a step's time at the longest context that fitted over that at the shortest."""
    found = []
    for name in _presets(rows):
        for batch in dict.fromkeys(row["batch"] for row in rows):
            fitted = [
                row for row in rows if (row["preset"], row["batch"]) == (name, batch) and "seconds_per_step" in row
            ]
            if fitted:
                shortest, longest = (pick(fitted, key=lambda row: row["context"]) for pick in (min, max))
                contexts = {"from": shortest["context"], "to": longest["context"]}
                time = longest["seconds_per_step"] / shortest["seconds_per_step"]
                found.append({"preset": name, "batch": batch, **contexts, "time": time})
    return found


def markdown(rows: list[dict[str, Any]]) -> str:
    """One line per batch and context; then one per preset and batch with the growth of its time."""
    measured, presets = _by_setting(rows), _presets(rows)
    columns = ["batch", "context", *(f"{name}, tokens/s" for name in presets), "ratio"]
    columns += [f"{name}, state a sequence" for name in presets]
    lines = []
    for setting in ratios(rows):
        found = [measured[name, setting["batch"], setting["context"]] for name in presets]
        speeds = [f"{row['tokens_per_second']:,.0f}" if "tokens_per_second" in row else "no memory" for row in found]
        ratio = "–" if setting["ratio"] is None else f"{setting['ratio']:.2f}"
        sizes = [f"{row['state_bytes_per_sequence'] / 2**20:,.2f} MiB" for row in found]
        lines.append([f"{setting['batch']}", f"{setting['context']:,}", *speeds, ratio, *sizes])
    grown = [
        [row["preset"], str(row["batch"]), f"{row['from']:,} → {row['to']:,}", f"{100 * (row['time'] - 1):+.1f} %"]
        for row in growth(rows)
    ]
    growth_table = markdown_table(["preset", "batch", "contexts", "time of a step grows"], grown)
    return f"{markdown_table(columns, lines, texts=0)}\n\n{growth_table}"


def _by_setting(rows: list[dict[str, Any]]) -> Measured:
    return {(row["preset"], row["batch"], row["context"]): row for row in rows}


def _presets(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["preset"] for row in rows))


def _settings(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return list(dict.fromkeys((row["batch"], row["context"]) for row in rows))
