"""A finding as files beside each other: its picture (SVG, PNG), its points (CSV) and all there is to say (JSON)."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from transnormer.files import disk_errors, write_json, write_text

_TIP = "tip:"  # of the id of what has one


def write_finding(
    out: Path, name: str, figure: Figure, points: Sequence[Mapping[str, Any]], facts: dict[str, Any]
) -> list[Path]:
    """Write `out`/`name`.svg, .png, .csv (the points, a row each) and .json; returns their paths."""
    svg, png, table, record = (out / f"{name}.{ending}" for ending in ("svg", "png", "csv", "json"))
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    image, text = io.BytesIO(), io.StringIO()
    # Without a date and with a fixed salt the same points give the same bytes.
    with rc_context({"svg.hashsalt": "transnormer"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    figure.savefig(image, format="png", dpi=150, metadata={"Software": None})
    write_text(svg, _with_tips(text.getvalue()))
    with disk_errors(png):
        png.write_bytes(image.getvalue())
    write_text(table, _as_csv(points))
    write_json(record, facts)
    return [svg, png, table, record]


def tidy(axes: Any, x_label: str, y_label: str) -> None:
    """Labels, a faint grid, and no frame where there is no axis."""
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def tell(axes: Any, x: float, y: float, text: str, **style: Any) -> None:
    """A point that in an SVG says to a pointer what it is; matplotlib has no place for it but the point's id."""
    axes.scatter([x], [y], **style).set_gid(f"{_TIP}{text}")


def _with_tips(svg: str) -> str:
    return re.sub(rf'<g id="{_TIP}([^"]*)">', r'<g class="points"><title>\1</title>', svg)


def _as_csv(points: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for point in points for key in point)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(points)
    return text.getvalue()
