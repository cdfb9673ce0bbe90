"""The page of any runs: their outcomes beside each other, where their configurations differ, and their curves."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transnormer.config.keys import flat
from transnormer.journal import worth_reading
from transnormer.report.curves import Curve, draw_curves
from transnormer.report.page import Page, Picture, Section, Table
from transnormer.report.run_record import RunRecord

_VALID_AND_TEST = "Columns: valid is of the last step, test of the best checkpoint."
_FAINT_AND_DOTS = "Faint: training batches. Dots: the validation split."
_SEVERAL = (
    "Losses of different tasks, data or tokenizers cannot be compared: each has a chart of its own, with its own axis."
)


def run_page(runs: Sequence[RunRecord]) -> Page:
    """All of it, with where the numbers come from at the end."""
    finished = [run.result for run in runs if run.result]
    return Page(
        title="Runs",
        lead="What was trained, and how far it came.",
        sections=run_sections(runs),
        facts=facts_of(finished[-1]) if finished else {},
    )


def run_sections(runs: Sequence[RunRecord]) -> list[Section]:
    """Outcome, keys that differ if any do, and losses."""
    scores = [_scores(run) for run in runs]
    metrics = sorted(dict.fromkeys(name for run in scores for name in run), key=lambda name: name.startswith("test"))
    rows = []
    for run, found in zip(runs, scores, strict=True):
        if run.result is None:
            rows.append([run.name, run.model, "not finished"] + [""] * (len(metrics) + 1))
            continue
        rows.append(
            [
                run.name,
                run.model,
                f"{run.result['parameters']:,}",
                f"{run.result['tokens_per_second']:,.0f}",
                *(found.get(name, "") for name in metrics),
            ]
        )
    differing = keys_that_differ(runs)
    protocols = dict.fromkeys(run.result["protocol"] for run in runs if run.result)
    explained = [f"Scored on {'; '.join(protocols)}."] if protocols else []
    if any(name.startswith("test") for name in metrics):
        explained.append(_VALID_AND_TEST)
    charts = loss_charts(runs)
    return [
        Section(
            "Outcome",
            text=" ".join(explained),
            table=Table(["run", "preset", "parameters", "tokens/s", *metrics], rows),
        ),
        *([Section("Keys that differ", table=differing)] if differing.rows else []),
        Section("Loss", text=_SEVERAL if len(charts) > 1 else _FAINT_AND_DOTS, pictures=charts),
    ]


def loss_charts(runs: Sequence[RunRecord]) -> list[Picture]:
    """A chart for each task and data set, which a tokenizer is part of: losses of others do not share an axis."""
    groups: dict[tuple[str, str], list[RunRecord]] = {}
    for run in runs:
        groups.setdefault((run.config.get("task", ""), _data_of(run)), []).append(run)
    if len(groups) == 1:
        return [Picture(svg=draw_losses(runs))]
    return [
        Picture(svg=draw_losses(group), caption=f"{_named(group[0])}: {', '.join(run.name for run in group)}.")
        for group in groups.values()
    ]


def draw_losses(runs: Sequence[RunRecord]) -> str:
    """Training loss (faint) and validation loss (dots) of several runs over the tokens they read, as SVG."""
    curves = []
    for run in runs:
        steps, tokens = [0], [0]
        for line in run.train:
            steps.append(line["step"])
            tokens.append(line["tokens"])
        curves.append(Curve(run.name, tokens[1:], [_number(line["loss"]) for line in run.train]))
        # An evaluation knows its step only, which may lie between two that were logged.
        at = np.interp([line["step"] for line in run.evaluations], steps, tokens)
        losses = [_number(line["metrics"]["loss"]) for line in run.evaluations]
        curves.append(Curve(run.name, at.tolist(), losses, dots=True))
    return draw_curves(curves, x_label="tokens", y_label="loss (nats)")


def keys_that_differ(runs: Sequence[RunRecord]) -> Table:
    """Keys down, runs across; a key that a run does not have is left empty."""
    configs = [flat(run.config) for run in runs]
    shown = {
        key: [_shown(config[key]) if key in config else "" for config in configs]
        for key in dict.fromkeys(key for config in configs for key in config)
    }
    rows = [[key, *values] for key, values in shown.items() if len(set(values)) > 1]
    return Table(["key", *(run.name for run in runs)], rows)


def facts_of(result: dict[str, Any]) -> dict[str, Any]:
    """Where a number comes from: the small print under a page."""
    return {
        "device": f"{result['device']}, {result['precision']}, {result['hardware']['cpu']}",
        "seed": result["seed"],
        "commit": result["commit"] or "not in a git checkout",
        "versions": ", ".join(f"{name} {version}" for name, version in result["versions"].items()),
    }


def _data_of(run: RunRecord) -> str:
    """What tells its data, tokenizer included, from others': their digest, or, where none is recorded, its keys."""
    return run.digest or json.dumps(run.config.get("data"), sort_keys=True)


def _named(run: RunRecord) -> str:
    data = f"{Path(run.store).name}, digest {run.digest[:12]}" if run.store and run.digest else "data not recorded"
    return f"{run.config.get('task', 'a task')} on {data}"


def _number(written: float | str) -> float:
    """A journal has the words nan and inf for what JSON has no number for; a curve has a gap there."""
    value = float(written)
    return value if math.isfinite(value) else math.nan


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _scores(run: RunRecord) -> dict[str, str]:
    """Of the last step on the validation split and, where a task has one, of the best checkpoint on the test split."""
    if run.result is None:
        return {}
    splits = {"valid": run.result["metrics"], "test": (run.result.get("test") or {}).get("metrics", {})}
    return {
        f"{split} {name.replace('_', ' ')}": f"{value:.4g}"
        for split, found in splits.items()
        for name, value in worth_reading(found).items()
    }
