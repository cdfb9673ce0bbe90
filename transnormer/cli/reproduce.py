"""`transnormer reproduce`: the tables of the paper, each by one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Reproduce the tables of the paper.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Reproduce the tables of the paper."""


@app.command("lra")
def lra(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Keys to change in every cell, e.g. train.steps=5000."),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Comma-separated, e.g. t1,t2,vanilla.", show_default="all")
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(help="Comma-separated: listops,text,image,pathfinder,retrieval.", show_default="all"),
    ] = None,
    setup: Annotated[
        str,
        typer.Option(
            help="skyformer (what the paper states), authors (how its own rows were made), "
            "release (the authors' later, larger models) or tuned (settings chosen for T2)."
        ),
    ] = "skyformer",
    seeds: Annotated[str, typer.Option(help="Comma-separated.")] = "42",
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder with stores named listops, text, ...; listops and pathfinder are generated if absent."
        ),
    ] = None,
    runs: Annotated[
        Path | None, typer.Option(help="Where the runs and their logs go.", show_default="runs/lra, or runs/lra-SETUP")
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(help="Where the records and the table go.", show_default="results/lra, or results/lra-SETUP"),
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Cells at once.", show_default="2 on a GPU, 1 on the CPU")] = None,
    budget_minutes: Annotated[
        float | None, typer.Option(help="Stop after so long; says first what fits. The rest is left for next time.")
    ] = None,
) -> None:
    """The Long-Range Arena: every method on every task, beside the paper's figures.

    A grid that was stopped goes on when the same command is given again: finished cells are skipped, others resumed.

    Example: transnormer reproduce lra --methods t2,vanilla --tasks listops --jobs 2

    Example: transnormer reproduce lra --data stores --budget-minutes 60

    Example: transnormer reproduce lra --setup authors --methods t2,vanilla --data stores
    """
    from transnormer.experiments.grid_display import GridDisplay
    from transnormer.experiments.lra_cells import arena_methods, chosen, chosen_seeds, plan_cells
    from transnormer.experiments.lra_grid import LRAGrid
    from transnormer.report.lra_paper import TASKS

    folder = "lra" if setup == "skyformer" else f"lra-{setup}"
    runs, results = runs or Path("runs") / folder, results or Path("results") / folder
    cells = plan_cells(
        chosen("method", methods, arena_methods()),
        chosen("task", tasks, TASKS),
        chosen_seeds(seeds),
        runs,
        data,
        overrides or [],
        setup,
    )
    LRAGrid(cells, runs, results, jobs, budget_minutes).run(GridDisplay())
