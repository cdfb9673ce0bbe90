"""`transnormer reproduce`: the tables of the paper, each by one command, or all of them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transnormer.cli import completion
from transnormer.cli.console import load_torch
from transnormer.cli.lists import choose_names, parse_seeds
from transnormer.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from transnormer.experiments.executor import Executor

RUNNERS = ("local", "ray")


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="lra, table6, ... (see `transnormer list tables`), or all.",
            autocompletion=completion.tables,
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Keys to change in every job, e.g. train.steps=5000, in those of one method: t2:train.steps=5000, "
            "or in trials (lra, fair): trials:train.steps=500.",
        ),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            help="One of several tables; ablations: scaling, gradients, early-late, proportion, order, ffn, block-size "
            "or combination.",
            show_default="all",
        ),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Rows, comma-separated, e.g. t1,t2,vanilla.", show_default="all")
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            help="Columns, comma-separated; lra: listops, text, image, pathfinder, retrieval; "
            "glue: mnli, qnli, qqp, sst2, mrpc, cola, rte; recall: pairs4, pairs8, ...; lm, mlm: that of the set-up; "
            "ablations: its masked and its causal models, e.g. mlm-enwiki,enwiki.",
            show_default="all",
        ),
    ] = None,
    setup: Annotated[
        str | None,
        typer.Option(
            help="lra: skyformer (what the paper states), authors (how its own rows were made), "
            "release (the authors' later, larger models), tuned (settings chosen for T2), "
            "fair (each method chooses by trials) or long (tuned, Pathfinder for 250,000 steps); "
            "lm: wikitext103 (the paper's: hours), enwiki (minutes) or enwik8 (bytes); "
            "mlm, glue: wikitext103 or enwiki; "
            "ablations: enwiki (minutes a row), wikitext103 (the paper's: hours) or tiny (a laptop).",
            show_default="the first named",
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Comma-separated.")] = "42",
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder with stores named like the columns; lra: listops and pathfinder are generated if absent."
        ),
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(help="Where the runs and their logs go.", show_default="runs/TABLE, or runs/TABLE-SETUP"),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(help="Where the records and the table go.", show_default="results/TABLE, or results/TABLE-SETUP"),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Jobs at once; with --runner ray, on each GPU, or without GPUs on each node.",
            show_default="2 on a GPU, 1 on the CPU",
        ),
    ] = None,
    runner: Annotated[
        str, typer.Option(help="local: processes of this machine. ray: tasks on the nodes of a Ray cluster.")
    ] = "local",
    ray_address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Of the head of the Ray cluster.", show_default="that in RAY_ADDRESS"),
    ] = None,
    budget_minutes: Annotated[
        float | None, typer.Option(help="Stop after so long; says first what fits. The rest is left for next time.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check all there is to check, say what would run, and stop.")
    ] = False,
) -> None:
    """Make a table of the paper anew: every method on every task, beside the paper's figures.

    What was stopped goes on when the same command is given again: finished jobs are skipped, others resumed.

    Example: transnormer reproduce lra --methods t2,vanilla --tasks listops --jobs 2

    Example: transnormer reproduce lra --data stores --budget-minutes 60

    Example: transnormer reproduce lra --setup authors --methods t2,vanilla --data stores

    Example: transnormer reproduce figures --runs runs/figures

    Example: transnormer reproduce lra --setup fair --data stores --budget-minutes 300

    Example: transnormer reproduce lm --setup enwiki --methods t2,vanilla,llama --data stores --jobs 1

    Example: transnormer reproduce ablations --table scaling --setup tiny

    Example: transnormer reproduce lra --data stores --runner ray --ray-address 10.0.0.1:6379

    Example: transnormer reproduce all --setup enwiki --data stores --budget-minutes 600
    """
    if name == "figures":
        from transnormer.cli.reproduce_figures import reproduce_figures

        if overrides or methods or tasks or setup or data or jobs or budget_minutes or dry_run or runner != "local":
            raise ConfigError("figures are drawn from records", "give --results and --runs alone")
        reproduce_figures(results or Path("results"), runs)
        return
    from transnormer.config.load import check_overrides
    from transnormer.experiments.experiment import Selection, bare, chosen_setup, part_of, selections_of_all
    from transnormer.experiments.paper import experiment
    from transnormer.experiments.paper.contents import ALL, experiments_of_the_paper, find

    check_overrides(map(bare, overrides or []))
    _check_runner(runner, ray_address)
    if name == ALL:
        for option, text in {"--table": table, "--methods": methods, "--tasks": tasks}.items():
            if text is not None:
                raise ConfigError(
                    f"{option} {text}: each table has names of its own", hint="leave it out, or name one table"
                )
        wanted = selections_of_all(experiments_of_the_paper(), setup, parse_seeds(seeds), data, overrides or [])
        from transnormer.experiments.all_tables import plan_all, run_all

        planned = plan_all(wanted, runs or Path("runs"), results or Path("results"))
        with _executor(runner, ray_address) as executor:
            run_all(planned, jobs, budget_minutes, executor, dry_run=dry_run)
        return
    entry = find(name)
    if table and entry.table and table != entry.table:
        raise ConfigError(f"--table {table}: {name} is {entry.table}", hint="leave one of them out")
    chosen = experiment(entry.experiment or name)
    setup = chosen_setup(setup, chosen.setups)
    folder = chosen.folder(setup)
    runs, results = runs or Path("runs") / folder, results or Path("results") / folder
    selection = Selection(
        rows=choose_names("--methods", methods, part_of(chosen, table or entry.table)),
        columns=choose_names("--tasks", tasks, chosen.columns(setup)),
        seeds=parse_seeds(seeds),
        setup=setup,
        data=data,
        overrides=overrides or [],
    )
    load_torch()  # all names were right
    from transnormer.experiments.display import JobDisplay
    from transnormer.experiments.stages import Stages

    with _executor(runner, ray_address) as executor:
        Stages(chosen, selection, runs, results, jobs, budget_minutes, dry_run, executor).run(JobDisplay())


def _check_runner(runner: str, ray_address: str | None) -> None:
    if runner not in RUNNERS:
        raise ConfigError(f"--runner: unknown '{runner}'", hint=did_you_mean(runner, RUNNERS))
    if ray_address and runner != "ray":
        raise ConfigError(f"--ray-address {ray_address}: jobs run on this machine", hint="add --runner ray")


def _executor(runner: str, ray_address: str | None) -> AbstractContextManager[Executor]:
    """Where the jobs run."""
    from transnormer.experiments.executor import LocalExecutor
    from transnormer.experiments.ray_cluster import connected

    return connected(ray_address) if runner == "ray" else nullcontext(LocalExecutor())
