"""One self-contained HTML page: tables, curves and text, with nothing to load from anywhere."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from transnormer.config.keys import flat
from transnormer.files import disk_errors, write_text
from transnormer.report.curves import Curve, draw_curves
from transnormer.report.run_record import RunRecord

_HINT = "choose another --out"
_VALID_AND_TEST = "Columns: valid is of the last step, test of the best checkpoint."


@dataclass(frozen=True)
class Table:
    """Column names and rows, as they are to be read."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it."""

    title: str
    text: str = ""
    table: Table | None = None
    svg: str = ""
    listing: str = ""


@dataclass(frozen=True)
class Page:
    """A title, an opening sentence, sections, and small facts at the end."""

    title: str
    lead: str
    sections: Sequence[Section]
    facts: dict[str, Any] = field(default_factory=dict)


def write_page(page: Page, path: Path) -> None:
    """Render the page into a file."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("transnormer.report", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    text = environment.get_template("page.html").render(page=page)
    with disk_errors(path, hint=_HINT):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text, _HINT)


def loss_curves(runs: Sequence[RunRecord]) -> str:
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


def _number(written: float | str) -> float:
    """A journal has the words nan and inf for what JSON has no number for; a curve has a gap there."""
    value = float(written)
    return value if math.isfinite(value) else math.nan


def run_page(runs: Sequence[RunRecord]) -> Page:
    """The page of any runs: their outcomes beside each other, where their configurations differ, and their curves."""
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
    finished = [run.result for run in runs if run.result]
    differing = keys_that_differ(runs)
    protocols = dict.fromkeys(result["protocol"] for result in finished)
    explained = [f"Scored on {'; '.join(protocols)}."] if protocols else []
    if any(name.startswith("test") for name in metrics):
        explained.append(_VALID_AND_TEST)
    return Page(
        title="Runs",
        lead="What was trained, and how far it came.",
        sections=[
            Section(
                "Outcome",
                text=" ".join(explained),
                table=Table(["run", "preset", "parameters", "tokens/s", *metrics], rows),
            ),
            *([Section("Keys that differ", table=differing)] if differing.rows else []),
            Section("Loss", svg=loss_curves(runs)),
        ],
        facts=facts_of(finished[-1]) if finished else {},
    )


def keys_that_differ(runs: Sequence[RunRecord]) -> Table:
    """Keys down, runs across; a key that a run does not have is left empty."""
    configs = [flat(run.config) for run in runs]
    shown = {
        key: [_shown(config[key]) if key in config else "" for config in configs]
        for key in dict.fromkeys(key for config in configs for key in config)
    }
    rows = [[key, *values] for key, values in shown.items() if len(set(values)) > 1]
    return Table(["key", *(run.name for run in runs)], rows)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _scores(run: RunRecord) -> dict[str, str]:
    """Of the last step on the validation split and, where a task has one, of the best checkpoint on the test split."""
    if run.result is None:
        return {}
    splits = {"valid": run.result["metrics"], "test": (run.result.get("test") or {}).get("metrics", {})}
    # A result has the words nan and inf for what JSON has no number for.
    return {
        f"{split} {name}": f"{float(value):.4g}" for split, found in splits.items() for name, value in found.items()
    }


def facts_of(result: dict[str, Any]) -> dict[str, Any]:
    """Where a number comes from: the small print under a page."""
    return {
        "device": f"{result['device']}, {result['precision']}, {result['hardware']['cpu']}",
        "seed": result["seed"],
        "commit": result["commit"] or "not in a git checkout",
        "versions": ", ".join(f"{name} {version}" for name, version in result["versions"].items()),
    }
