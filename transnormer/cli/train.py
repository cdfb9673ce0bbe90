"""`transnormer train`: start a run from a recipe."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transnormer.cli.console import print_text

if TYPE_CHECKING:
    from transnormer.config.schema import RunConfig


def train(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A shipped recipe (see `transnormer list recipes`) or a YAML file.")
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Keys to change, e.g. train.steps=100.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder to write; must be new or empty.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check all there is to check before a run, print the config, and stop.")
    ] = False,
) -> None:
    """Train a model by a recipe.

    Example: transnormer train demo --out run model.preset=t1-tiny train.steps=100
    """
    from transnormer.config.load import dump_config, load_config
    from transnormer.tasks.registry import task_entry

    config = load_config(recipe, overrides or [])
    if out is None and not dry_run:
        raise typer.BadParameter("name the run folder, e.g. --out run", param_hint="--out")
    task_entry(config.task)  # an unknown one is answered before torch is loaded, which takes seconds
    if out is not None:
        _check_out(out)
    _check_model(config)
    if dry_run:
        from transnormer.train.loop import rehearse

        print_text(dump_config(rehearse(config, out)).rstrip())
        return
    from transnormer.train.loop import train as run

    assert out is not None
    print_outcome(out, run(config, out))


def print_outcome(run: Path, result: dict[str, Any]) -> None:
    """How a run ended, where its model is, and what to do with it."""
    if os.environ.get("RANK", "0") != "0":  # of several processes one speaks for all
        return
    print_text(f"finished {run} in {result['seconds']:.0f} s of training: {_in_a_line(result['metrics'])}")
    if test := result["test"]:
        scores = _in_a_line(test["metrics"])
        print_text(f"{test['split']} split, once, with the best checkpoint (step {test['step']:,}): {scores}")
    print_text(f"the model is in {run / 'final'}; score it with: transnormer eval {run}")


def _in_a_line(metrics: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.5g}" for name, value in metrics.items())


def _check_out(out: Path) -> None:
    """Refuse a folder that cannot be a new run's; the first of several tells the others once they have met."""
    from transnormer.train.run_folder import RunFolder

    if os.environ.get("WORLD_SIZE", "1") == "1":
        RunFolder(out).require_new()


def _check_model(config: RunConfig) -> None:
    """Refuse a model that does not exist before any data is prepared, which may take minutes."""
    from transnormer.models.presets import model_config

    model_config(config.model)
