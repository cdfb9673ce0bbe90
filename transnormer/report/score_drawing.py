"""Figure 1 as a drawing: circles of two panels, ours and the paper's, each with its name beside it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure as Picture
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from transnormer.analysis.figure_files import tell, tidy

# TransNormers stand out; with a name at every circle the others need no colours.
_COLOURS = {"t1": "C1", "t2": "C0"}
_OTHERS = "#8a949e"
_LARGEST, _PAPERS = 900, 60  # areas of circles, in square points
_SIDES = [(0, 1), (1, 0), (-1, 0), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1)]


def draw_scores(points: Sequence[dict[str, Any]], length: int, gpu: str, setup: str) -> Picture:
    """Mean score over training speed; the area of a circle of ours is the memory of training."""
    figure = Picture(figsize=(10, 4.4), layout="constrained")
    ours, papers = figure.subplots(1, 2)
    largest = max((point["train_peak_bytes"] or 0 for point in points), default=0) or 1
    names: dict[Any, list[tuple[float, float, float, str]]] = {ours: [], papers: []}
    for axes, prefix in ((ours, ""), (papers, "paper_")):
        for point in points:
            name, score, steps = point["method"], point[f"{prefix}score"], point[f"{prefix}train_steps_per_second"]
            if score is None or steps is None:
                continue
            said, size = f"{name}: mean score {score:.1f} %, {steps:,.1f} steps/s", float(_PAPERS)
            if axes is ours:
                memory = point["train_peak_bytes"] or 0
                size, said = _LARGEST * memory / largest, f"{said}, {memory / 2**30:.2f} GiB at most"
            tell(axes, steps, score, said, s=size, color=_COLOURS.get(name, _OTHERS), alpha=0.6)
            names[axes].append((steps, score, math.sqrt(size) / 2, name))
    ours.set_title(f"ours: {gpu}, set-up {setup}; area of a circle: peak memory", fontsize=9)
    papers.set_title("the paper's tables: A6000; it prints no memory", fontsize=9)
    for axes in (ours, papers):
        axes.margins(0.2)
        tidy(axes, f"training steps a second at {length:,} tokens", "mean score of five tasks, %")
    figure.draw_without_rendering()  # where circles lie in the picture is known behind its layout
    for axes, placed in names.items():
        _name(axes, placed)
    return figure


def _name(axes: Any, circles: Sequence[tuple[float, float, float, str]]) -> None:
    """A name at each circle, at the nearest place where it covers no circle and no other name; without one, none."""
    pixel = axes.figure.dpi / 72
    taken = []
    for x, y, radius, _ in circles:
        across, up = axes.transData.transform((x, y))
        reach = radius * pixel
        taken.append(Bbox.from_extents(across - reach, up - reach, across + reach, up + reach))
    for x, y, radius, name in sorted(circles, key=lambda circle: -circle[1]):
        for further, (right, up) in itertools.product(range(6), _SIDES):
            away = radius * (0.75 if right and up else 1) + 1 + 9 * further
            text = axes.annotate(
                name,
                (x, y),
                (right * away, up * away),
                textcoords="offset points",
                fontsize=7.5,
                ha=("center", "left", "right")[right],
                va=("center", "bottom", "top")[up],
                in_layout=False,
                arrowprops={"arrowstyle": "-", "color": _OTHERS, "linewidth": 0.5} if further else None,
            )
            text.get_window_extent()  # moves it to where it is; with the line to its circle, which may cross others
            box = Text.get_window_extent(text)
            if axes.bbox.x0 < box.x0 and box.x1 < axes.bbox.x1 and not any(map(box.overlaps, taken)):
                taken.append(box)
                break
            text.remove()
