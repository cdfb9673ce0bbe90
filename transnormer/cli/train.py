"""`transnormer train`: start a run from a recipe."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transnormer.cli import completion
from transnormer.cli.console import load_torch, print_note, print_text, show_value
from transnormer.cli.verbosity import is_quiet, is_verbose
from transnormer.errors import ConfigError, command

if TYPE_CHECKING:
    from transnormer.config.schema import RunConfig, TrainSection


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="A shipped recipe (see `transnormer list recipes`) or a YAML file.",
            autocompletion=completion.recipes,
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Keys to change, e.g. train.steps=100.", autocompletion=completion.overrides
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder to write; must be new or empty.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check all there is to check before a run, print the config, and stop.")
    ] = False,
) -> None:
    """Train a model by a recipe.

    Example: transnormer train demo --out run model.preset=t1-tiny train.steps=100
    """
    from transnormer.config.load import dump_config
    from transnormer.models.presets import model_config
    from transnormer.tasks.registry import task_entry

    config = _valid_somewhere(recipe, overrides or [])
    if out is None and not dry_run:
        raise typer.BadParameter("name the run folder, e.g. --out run", param_hint="--out")
    task_entry(config.task)  # an unknown one is answered before torch is loaded, which takes seconds
    if out is not None:
        _check_out(out)
    _check_preset(config)
    _check_data(config)
    load_torch()
    config = _fitted(recipe, overrides or [], config.train)
    model_config(config.model)  # a model that cannot be is refused before data are prepared, which may take minutes
    if dry_run:
        from transnormer.train.loop import rehearse

        print_text(dump_config(rehearse(config, out)).rstrip())
        return
    from transnormer.train.loop import train as run

    assert out is not None
    print_outcome(out, run(config, out, show=False if is_quiet() else None))


def print_outcome(run: Path, result: dict[str, Any]) -> None:
    """How a run ended, where its model is, and what to do with it."""
    if os.environ.get("RANK", "0") != "0":  # of several processes one speaks for all
        return
    from transnormer.train.progress import in_a_line

    print_text(f"finished {run} in {result['seconds']:.0f} s of training: {in_a_line(result['metrics'])}")
    if test := result["test"]:
        scores = in_a_line(test["metrics"])
        print_text(f"{test['split']} split, once, with the best checkpoint (step {test['step']:,}): {scores}")
    if not (run / "final").exists():
        print_text("its weights were removed; its config, journal and result stay")
        return
    print_text(f"the model is in {run / 'final'}; score it with: {command('eval', run)}")
    if result["task"] == "causal_lm":
        print_text(f"write with it: {command('generate', run)}")


def _valid_somewhere(recipe: str, overrides: list[str]) -> RunConfig:
    """The config on a GPU or else on a CPU; which of them this machine has is known once torch is loaded."""
    from transnormer.config.load import resolve

    try:
        return resolve(recipe, overrides).config
    except ConfigError as error:
        try:
            return resolve(recipe, overrides, on_cpu=True).config
        except ConfigError:
            raise error from None


def _fitted(recipe: str, overrides: list[str], train: TrainSection) -> RunConfig:
    """The config on this machine: what a recipe says about CPUs counts where there is no GPU, and is said."""
    from transnormer.config.load import resolve
    from transnormer.train.ranks import runs_on_cuda

    resolved = resolve(recipe, overrides, on_cpu=not runs_on_cuda(train))
    if smaller := resolved.set_by_cpu():
        keys = " ".join(f"{key}={show_value(value)}" for key, value in smaller.items())
        print_note(f"{recipe} on a CPU, unless you say otherwise: {keys}")
    if is_verbose():
        for key, origin in resolved.origins.items():
            print_note(f"{key}: {origin}")
    return resolved.config


def _check_out(out: Path) -> None:
    """Refuse a folder that cannot be a new run's; the first of several tells the others once they have met."""
    from transnormer.train.run_folder import RunFolder

    if os.environ.get("WORLD_SIZE", "1") == "1":
        RunFolder(out).require_new()


def _check_preset(config: RunConfig) -> None:
    """Refuse a model that has no such name, or not this form."""
    from transnormer.models.presets import require_preset

    if config.model.preset is not None:
        require_preset(config.model.preset, config.model.changes().get("causal"))


def _check_data(config: RunConfig) -> None:
    """Refuse a store, or text of a corpus, that is not there."""
    from transnormer.data.corpora import open_corpus
    from transnormer.data.open_store import open_store

    if config.data.store is not None:
        open_store(config.data.store)
    elif config.task in ("causal_lm", "masked_lm"):
        open_corpus(config.data.corpus, config.data.source)
