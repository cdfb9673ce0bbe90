"""Gradient norms over training from the journals of runs: their trace, of the model and of each layer, and its spread.

The paper's Table 2 compares the relative standard deviation of gradients over training without a definition. Here it is
std / mean of the global norm, before clipping, over the logged steps of a run (`relative_deviation`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from transnormer.analysis.figure_files import tidy
from transnormer.config.known_runs import require_run
from transnormer.errors import DataError
from transnormer.journal import read_journal, relative_deviation

GLOBAL = "global"
DEFINITION = "standard deviation / mean of the gradient norm before clipping, over the logged steps"
HOW_TO_GET_LAYERS = "train with train.log_layer_gradients=true (or resume with it) for the norm of each layer"


@dataclass(frozen=True)
class Trace:
    """The gradient norms of one run by step; `norms` has the global one and, where it was logged, each layer's."""

    name: str
    steps: list[int]
    norms: Mapping[str, list[float]]

    @property
    def has_layers(self) -> bool:
        """Whether the run logged its layers."""
        return len(self.norms) > 1

    def facts(self) -> dict[str, Any]:
        """The spread of each norm and which steps it is of, for the record."""
        spread = {
            name: {"mean": statistics.fmean(norms), "relative_deviation": relative_deviation(norms)}
            for name, norms in self.norms.items()
        }
        return {
            "run": self.name,
            "steps": {"first": self.steps[0], "last": self.steps[-1], "logged": len(self.steps)},
            "norms": spread,
        }


def read_trace(run: Path, name: str | None = None, after: int = 0) -> Trace:
    """The trace of a run folder over its logged steps behind `after`; lines that lack layers have them left out.

    Where only a part of a run logged its layers, the trace is that of those steps.
    """
    require_run(run)
    journal = run / "journal.jsonl"
    if not journal.is_file():
        raise DataError(f"{run} has no journal (journal.jsonl)", "give the folder of a run that has made steps")
    lines = [line for line in read_journal(journal) if line["kind"] == "train" and line["step"] > after]
    with_layers = [line for line in lines if "layer_grad_norms" in line]
    chosen = with_layers if len(with_layers) > 1 else lines
    if len(chosen) < 2:
        where = f" after step {after}" if after else ""
        found = f"{len(chosen)} logged step" if len(chosen) == 1 else "no logged steps"
        raise DataError(
            f"{journal} has {found}{where}, and a deviation needs two",
            "train longer, or with a smaller train.log_every" + (", or a smaller --after" if after else ""),
        )
    norms = {GLOBAL: [float(line["grad_norm"]) for line in chosen]}
    if len(with_layers) > 1:
        for group in chosen[0]["layer_grad_norms"]:
            norms[_from_one(group)] = [float(line["layer_grad_norms"][group]) for line in chosen]
    return Trace(name or run.resolve().name, [line["step"] for line in chosen], norms)


def _from_one(group: str) -> str:
    """A journal counts layers from 0, as parameters are named; a reader from 1, as in all other analyses."""
    return f"layer {int(group.removeprefix('layer ')) + 1}" if group.startswith("layer ") else group


def points(traces: Sequence[Trace]) -> list[dict[str, Any]]:
    """A row for each run and logged step."""
    return [
        {"run": trace.name, "step": step, **{name: norms[index] for name, norms in trace.norms.items()}}
        for trace in traces
        for index, step in enumerate(trace.steps)
    ]


def draw(traces: Sequence[Trace]) -> Figure:
    """The global norms of all runs in one panel, and one panel for each run that has layers, dark at the input."""
    layered = [trace for trace in traces if trace.has_layers]
    figure = Figure(figsize=(7.2, 3.4 * (1 + len(layered))), layout="constrained")
    [first, *rest] = figure.subplots(1 + len(layered), squeeze=False)[:, 0]
    for trace in traces:
        spread = relative_deviation(trace.norms[GLOBAL])
        first.plot(trace.steps, trace.norms[GLOBAL], linewidth=1.0, label=f"{trace.name} (std/mean {spread:.2f})")
    first.set_title("all parameters")
    for axes, trace in zip(rest, layered, strict=True):
        layers = [name for name in trace.norms if name != GLOBAL]
        for number, name in enumerate(layers):
            shade = _shade(number / max(1, len(layers) - 1))
            axes.plot(trace.steps, trace.norms[name], linewidth=1.0, color=shade, label=name)
        axes.set_title(f"{trace.name}, by layer", parse_math=False)
    for axes in (first, *rest):
        _scale(axes)
        tidy(axes, "step", "gradient norm")
        legend = axes.legend(frameon=False, fontsize="small", ncols=1 if axes is first else 4)
        for text in legend.get_texts():
            text.set_parse_math(False)
    return figure


def _scale(axes: Any) -> None:
    """A log axis where norms are far apart, with so many ticks that none lies over another."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axes.dataLim.minposy, axes.dataLim.y1
    if not high > 3 * low:
        return
    decades = math.log10(high / low)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(
        LogLocator(subs=(1,) if decades > 4 else (1, 2, 5) if decades > 1 else (1, 2, 3, 5, 7))
    )
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _shade(share: float) -> Any:
    from matplotlib import colormaps

    return colormaps["viridis"](0.9 * share)
