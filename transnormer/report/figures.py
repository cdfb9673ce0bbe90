"""Figures 1, 2a and 2b of the paper from the records in results/, beside what the paper shows.

Nothing is measured here. A figure whose records are missing is not drawn; the command that makes them is named.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure as Picture

from transnormer.analysis import attention_maps, dilution_of_models
from transnormer.analysis.figure_files import write_finding
from transnormer.errors import DataError
from transnormer.experiments.paper import speed
from transnormer.experiments.paper.lra import PAPER, TASKS, LongRangeArena, locate
from transnormer.experiments.record import machine_of, read_records
from transnormer.report.markdown import read_record
from transnormer.report.score_drawing import draw_scores

# The longest input at which the paper's vanilla transformer still fits its GPU.
LENGTH = 2048
_SPEED = "bench/speed-paper.json"
_EARLY_LAYERS = 2


@dataclass(frozen=True)
class Drawn:
    """A figure, the points in it, and what it is made from; `notes` say what is not in it and how to get it."""

    picture: Picture
    points: list[dict[str, Any]]
    facts: dict[str, Any]
    notes: list[str]


class Missing(DataError):
    """There are no records to draw a figure from; the hint is the command that makes them."""


def score_against_speed(results: Path) -> Drawn:
    """Figure 1: mean Long-Range Arena score over training speed, the area of a circle is the memory of training."""
    record = read_record(results / _SPEED)
    if record is None:
        raise Missing(f"no {_SPEED}", f"transnormer bench speed --device cuda --setting paper --out results/{_SPEED}")
    setup, scores, notes = _scores(results)
    rows = {row["method"]: row for row in record["rows"] if row["length"] == LENGTH}
    points = []
    for method, paper in PAPER.items():
        score, row = scores.get(method), rows.get(method, {})
        steps, memory = row.get("train_steps_per_second"), row.get("train_peak_bytes")
        papers = statistics.fmean(paper.values()) if paper else None
        if score is None and papers is None:
            continue
        if score is not None and steps is None:
            notes.append(f"{method}, without a speed at {LENGTH:,} tokens: transnormer bench speed --setting paper")
        points.append(
            {
                "method": method,
                "score": score,
                "train_steps_per_second": steps,
                "train_peak_bytes": memory,
                "paper_score": papers,
                "paper_train_steps_per_second": speed.train_steps(method, LENGTH),
            }
        )
    machine = machine_of(record)
    facts = {
        "sources": [_SPEED, f"{LongRangeArena().folder(setup)}/*.json"],
        "length": LENGTH,
        "measured_on": machine,
        "setup": setup,
        "paper": "TransNormer T2 is highest and furthest to the right: the best mean score at the greatest speed.",
    }
    return Drawn(draw_scores(points, LENGTH, machine, setup), points, facts, notes)


def _scores(results: Path) -> tuple[str, dict[str, float], list[str]]:
    """The set-up with most methods complete, their means over five tasks, and what the others lack."""
    experiment = LongRangeArena()
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    stand_ins: dict[str, set[str]] = {}
    for setup in experiment.setups:
        for record in read_records(results / experiment.folder(setup)):
            if place := locate(record):
                tasks = found.setdefault(setup, {}).setdefault(place[0], {})
                tasks.setdefault(place[1], []).append(record.score)
                if record.is_stand_in:
                    stand_ins.setdefault(setup, set()).add(place[1])
    if not found:
        raise Missing("no records of the Long-Range Arena", "transnormer reproduce lra")
    complete = {
        setup: {
            method: statistics.fmean(statistics.fmean(seeds) for seeds in tasks.values())
            for method, tasks in methods.items()
            if len(tasks) == len(TASKS)
        }
        for setup, methods in found.items()
    }
    setup = max(complete, key=lambda name: len(complete[name]))
    lacking = [method for method, figures in PAPER.items() if figures and method not in complete[setup]]
    command = f"transnormer reproduce lra --setup {setup} --methods {','.join(lacking)}"
    notes = [f"methods without a score on all five tasks: {', '.join(lacking)}: {command}"] if lacking else []
    if reason := experiment.unequal.get(setup):
        notes.append(f"equal terms: {setup} is the set-up {reason}")
    if setup in stand_ins:
        notes.append(f"the published data of {', '.join(sorted(stand_ins[setup]))}: stand-ins, compare only among ours")
    return setup, complete[setup], notes


def dilution_curves(results: Path) -> Drawn:
    """Figure 2a: locally accumulated attention of the models in results/analysis/dilution.json."""
    record = read_record(results / "analysis" / "dilution.json")
    if record is None:
        raise Missing("no analysis/dilution.json", "transnormer analyse dilution RUN... --out results/analysis")
    facts = {
        "sources": ["analysis/dilution.json"],
        "protocol": record["protocol"],
        "areas": {row["run"]: row["mean"]["area"] for row in record["runs"]},
        "paper": "Vanilla rises steeply, linear attention slowly, TransNormer nearly as steeply as vanilla.",
    }
    return Drawn(dilution_of_models.draw(record["runs"]), dilution_of_models.points(record["runs"]), facts, [])


def early_maps(results: Path) -> Drawn:
    """Figure 2b: mean attention over the heads of early layers, from results/analysis/attention-*.json."""
    import torch

    files = sorted((results / "analysis").glob("attention-*.json"))
    records = [record for file in files if (record := read_record(file))]
    if not records:
        raise Missing("no analysis/attention-*.json", "transnormer analyse attention RUN --out results/analysis")
    figure = Picture(figsize=(2.8 * len(records) + 0.4, 2.9 * _EARLY_LAYERS), layout="constrained")
    grid = figure.subplots(_EARLY_LAYERS, len(records), squeeze=False)
    points = []
    for column, record in enumerate(records):
        for row, axes in enumerate(grid[:, column]):
            if row >= len(record["layers"]):
                axes.set_axis_off()
                continue
            layer = record["layers"][row]
            shares = torch.tensor(layer["mean_share"])
            # The first tokens see few others: their large shares would leave all that follow them pale.
            attention_maps.show_matrix(axes, shares, float(shares[shares > 0].quantile(0.99)))
            name = record["run"].replace("$", r"\$")
            axes.set_title(f"{name}, layer {layer['layer']} ({layer['mixer']})", fontsize=8)
            axes.tick_params(labelsize=6)
            place = {"run": record["run"], "layer": layer["layer"], "mixer": layer["mixer"]}
            for query, weights in enumerate(layer["mean_share"], start=1):
                for key, share in enumerate(weights, start=1):
                    points.append({**place, "query": query, "key": key, "share": share})
    facts = {
        "sources": [f"analysis/{file.name}" for file in files],
        "paper": "Early layers of vanilla and TransNormer attend near the diagonal, linear attention anywhere.",
    }
    return Drawn(figure, points, facts, [])


FIGURES: dict[str, tuple[str, Callable[[Path], Drawn]]] = {
    "figure1": ("score against speed, circles by memory", score_against_speed),
    "figure2a": ("dilution curves", dilution_curves),
    "figure2b": ("attention maps of early layers", early_maps),
}


def write_figure(name: str, results: Path, **provenance: Any) -> tuple[list[Path], Drawn]:
    """Draw a figure into results/figures as SVG, PNG and CSV, with a JSON file of what it is made from."""
    drawn = FIGURES[name][1](results)
    facts = {"figure": name, **drawn.facts, "notes": drawn.notes, **provenance}
    return write_finding(results / "figures", name, drawn.picture, drawn.points, facts), drawn
