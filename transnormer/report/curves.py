"""Curves as SVG text, ready to stand inside an HTML page."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.figure import Figure


@dataclass(frozen=True)
class Curve:
    """One line of a plot; `dots` marks its points, for the few values of an evaluation."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    dots: bool = False


def draw_curves(curves: Sequence[Curve], *, x_label: str, y_label: str, doubling: bool = False) -> str:
    """An SVG element with the curves; the same label has the same colour, dotted or not.

    `doubling` x values, such as lengths, stand at equal distances, each with its tick.
    """
    figure = Figure(figsize=(7.2, 3.6))
    axes = figure.subplots()
    colours: dict[str, str] = {}
    named = {}
    for curve in curves:
        colour = colours.setdefault(curve.label, f"C{len(colours)}")
        style = {"marker": "o", "markersize": 4, "linewidth": 1.6} if curve.dots else {"linewidth": 1.0, "alpha": 0.45}
        (line,) = axes.plot(curve.x, curve.y, color=colour, **style)
        if curve.dots:
            named[curve.label] = line
    if doubling:
        ticks = sorted({x for curve in curves for x in curve.x})
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{x / 1024:g}k" if x >= 1024 else f"{x:g}" for x in ticks])
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    # Written after the legend is made: matplotlib leaves out names that begin with _, and reads $ as mathematics.
    legend = axes.legend(list(named.values()), ["run"] * len(named), frameon=False)
    for text, label in zip(legend.get_texts(), named, strict=True):
        text.set_parse_math(False)
        text.set_text(label)
    figure.tight_layout()
    buffer = io.StringIO()
    # Without a date and with a fixed salt the same data give the same bytes.
    with rc_context({"svg.hashsalt": "transnormer"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return re.sub(r"^.*?(?=<svg)", "", buffer.getvalue(), flags=re.DOTALL)
