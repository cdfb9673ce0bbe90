"""`transnormer reproduce figures`: the figures of the paper from records, which it makes of checkpoints if asked."""

from __future__ import annotations

from pathlib import Path

from transnormer.cli.console import print_text
from transnormer.errors import ConfigError, TransNormerError


def reproduce_figures(results: Path, runs: Path | None) -> None:
    """Draw every figure that has records; say of the others, and of what is not in one, which command makes them."""
    if runs is not None:
        _analyse(runs, results / "analysis")
    from transnormer.environment import describe_environment
    from transnormer.report.figures import FIGURES, Missing, write_figure

    for name, (about, _) in FIGURES.items():
        try:
            written, drawn = write_figure(name, results, **describe_environment())
        except Missing as missing:
            print_text(f"{name}, {about}: missing, {missing.message} in {results}. Make it: {missing.hint}")
            continue
        print_text(f"{name}, {about}: {', '.join(map(str, written))}")
        print_text(f"  from {', '.join(drawn.facts['sources'])}")
        print_text(f"  the paper: {drawn.facts['paper']}")
        for note in drawn.notes:
            print_text(f"  not in it: {note}")


def _analyse(runs: Path, out: Path) -> None:
    """Dilution and maps of every finished run of a folder that can be looked into; the others are named."""
    from transnormer.cli.analyse_attention import attention
    from transnormer.cli.analyse_dilution import dilution

    found = sorted(path.parent for path in runs.glob("*/result.json"))
    if not found:
        raise ConfigError(f"no finished run in {runs}", "give a folder of runs that `transnormer train` has finished")
    drawn = []
    for run in found:
        try:
            attention(run, length=128, out=out)
        except TransNormerError as error:
            print_text(f"left out of figures 2a and 2b: {run.name}, {error.message}")
        else:
            drawn.append(run)
    if drawn:
        dilution(drawn, out=out)
