"""Ours against the floor, the goal and the best peer: what the rows of the GPU benchmark say together."""

from __future__ import annotations

from typing import Any

from transnormer.bench.cases import PACKED, PACKED_CASES
from transnormer.bench.gpu_ops import OURS
from transnormer.bench.shapes import PASSES, floor_microseconds, goal_microseconds
from transnormer.markdown import markdown_table

Row = dict[str, Any]


def summarise(rows: list[Row], bandwidth: float) -> list[Row]:
    """One entry per case, shape and variant of ours; in each pass a ratio of at most 1 means as fast or faster."""
    summary = []
    for ours in rows:
        if ours["by"] not in OURS or "forward_us" not in ours:
            continue
        case, shape = ours["case"], ours["shape"]
        peers = [row for row in rows if (row["case"], row["shape"]) == (case, shape) and row["by"] not in OURS]
        if case in PACKED_CASES:
            peers += [{**row, "by": "apart"} for row in rows if _is_apart(row, ours)]
        floor = floor_microseconds(shape, bandwidth)
        goal = goal_microseconds(case, shape, floor)
        entry: Row = {"case": case, "shape": shape, "by": ours["by"]}
        for each in PASSES:
            if f"{each}_us" not in ours:  # with its norm folded there is no backward
                continue
            entry[each] = {
                "us": ours[f"{each}_us"],
                "floor_us": floor[each],
                "x_floor": ours[f"{each}_us"] / floor[each],
                "goal_x_floor": None if goal is None else goal[each] / floor[each],
                **_against_best(ours[f"{each}_us"], f"{each}_us", peers),
            }
        summary.append(entry)
    return summary


def _is_apart(row: Row, packed: Row) -> bool:
    """Whether a row of the benchmark has what one of packed sequences has, as rows of a batch."""
    return row["case"] == packed["case"].removesuffix(PACKED) and all(
        row[key] == packed[key] for key in ("shape", "by")
    )


def _against_best(ours: float, key: str, peers: list[Row]) -> Row:
    """The fastest peer that computes the op, and our time as a multiple of its time."""
    able = [row for row in peers if key in row]
    if not able:
        return {"best_peer": None}
    best = min(able, key=lambda row: row[key])
    return {"best_peer": best["by"], "best_peer_us": best[key], "x_best_peer": ours / best[key]}


_LEGEND = "x floor, x peer: our time as a multiple."
_LEGEND_OF_PACKED = "The peer of packed sequences is ours on the same ones apart, as rows of a batch."
_OF_A_PASS = ("us", "x floor", "goal", "best peer us", "x peer")
COLUMNS = ["case", "shape", "ours", *(f"{each}{column}" for each in ("fwd ", "fwd+bwd ") for column in _OF_A_PASS)]


def table(summary: list[Row]) -> list[list[str]]:
    """The summary as cells under `COLUMNS`."""
    lines = []
    for entry in summary:
        cells = [entry["case"], entry["shape"], entry["by"]]
        for each in PASSES:
            part = entry.get(each)
            if part is None:
                cells += ["–"] * len(_OF_A_PASS)
                continue
            goal = part["goal_x_floor"]
            cells += [f"{part['us']:.1f}", f"{part['x_floor']:.2f}", "–" if goal is None else f"{goal:.2f}"]
            if part["best_peer"] is None:
                cells += ["–", "–"]
            else:
                cells += [f"{part['best_peer']} {part['best_peer_us']:.1f}", f"{part['x_best_peer']:.2f}"]
        lines.append(cells)
    return lines


def legend(summary: list[Row]) -> str:
    """What the columns of a table mean."""
    packed = any(entry["case"] in PACKED_CASES for entry in summary)
    return f"{_LEGEND} {_LEGEND_OF_PACKED}" if packed else _LEGEND


def markdown(summary: list[Row]) -> str:
    """The summary as a page beside its record."""
    return f"{markdown_table(COLUMNS, table(summary), texts=3)}\n\n{legend(summary)}"
