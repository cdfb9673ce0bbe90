"""`transnormer analyse gradients`: bounds of gradients by attention, and gradient norms over training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transnormer.cli.console import load_torch, print_table, print_text
from transnormer.errors import ConfigError
from transnormer.files import require_place_for


def gradients(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUN]...", help="Run folders; without any, the bounds are drawn.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the picture and its numbers.")] = Path("analysis"),
    after: Annotated[
        int | None, typer.Option(min=0, help="Leave the steps up to this one out.", metavar="STEP")
    ] = None,
) -> None:
    """Gradients: of an attention by its scores, beside the paper's bounds, or of runs while they trained.

    Writes gradients.svg, .png, .csv and .json (without a run: gradient-bounds).

    Example: transnormer analyse gradients --out analysis

    Example: transnormer analyse gradients runs/t2 runs/linear_elu --after 100
    """
    if after is not None and not runs:
        raise ConfigError("--after is about the steps of runs, and none is named", "name a run, or leave it out")
    require_place_for(out)
    load_torch()
    if runs:
        _of_runs(runs, out, after or 0)
    else:
        _bounds(out)


def _bounds(out: Path) -> None:
    from transnormer.analysis.figure_files import write_finding
    from transnormer.analysis.gradient_bounds import NAMES, draw, facts, measure
    from transnormer.environment import describe_environment

    rows = measure()
    found = facts(rows)
    largest = found["largest"]
    print_text(f"largest gradients over scores from {rows[0]['s']:g} to {rows[-1]['s']:g}, with c₁ = c₂ = 1")
    table = [
        (label, *(f"{largest[key]:.3g}" if (key := f"{name}_{kind}") in largest else "-" for kind in ("dp", "dL")))
        for name, label in NAMES.items()
    ]
    print_table(["attention", "|∂p/∂s|", "|∂L/∂s|"], table)
    _say(write_finding(out, "gradient-bounds", draw(rows), rows, {**found, **describe_environment()}))


def _of_runs(runs: list[Path], out: Path, after: int) -> None:
    from transnormer.analysis.figure_files import write_finding
    from transnormer.analysis.gradients import DEFINITION, HOW_TO_GET_LAYERS, draw, points, read_trace
    from transnormer.environment import describe_environment

    traces = [read_trace(run, name, after) for run, name in zip(runs, names_of(runs), strict=True)]
    found = [trace.facts() for trace in traces]
    for trace in found:
        steps = trace["steps"]
        print_text(f"{trace['run']}: {steps['logged']:,} logged steps, {steps['first']:,} to {steps['last']:,}")
        rows = [
            (name, f"{norm['mean']:.3g}", f"{norm['relative_deviation']:.2f}") for name, norm in trace["norms"].items()
        ]
        print_table(["gradient of", "mean norm", "std / mean"], rows)
    print_text(f"std / mean: {DEFINITION}")
    if bare := [trace.name for trace in traces if not trace.has_layers]:
        print_text(f"no layers in {', '.join(bare)}: {HOW_TO_GET_LAYERS}")
    record = {"analysis": "gradients", "definition": DEFINITION, "runs": found, **describe_environment()}
    _say(write_finding(out, "gradients", draw(traces), points(traces), record))


def names_of(runs: list[Path]) -> list[str]:
    """Folder names, or paths where two are the same."""
    names = [run.resolve().name for run in runs]
    return [str(run) if names.count(name) > 1 else name for run, name in zip(runs, names, strict=True)]


def _say(files: list[Path]) -> None:
    print_text(f"written: {', '.join(map(str, files))}")
