"""`transnormer list`: what can be named in a recipe, and the tables that can be reproduced."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from transnormer.cli.console import load_torch, print_table


class Kind(StrEnum):
    """What can be listed."""

    mixers = "mixers"
    presets = "presets"
    recipes = "recipes"
    tasks = "tasks"
    tables = "tables"


def show_list(
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help="mixers, presets, recipes, tasks or tables.")],
) -> None:
    """List mixers, presets, recipes, tasks or the paper's tables.

    Example: transnormer list mixers
    """
    shown = {Kind.mixers: _mixers, Kind.presets: _presets, Kind.recipes: _recipes, Kind.tasks: _tasks}
    shown[Kind.tables] = _tables
    shown[kind]()


def _mixers() -> None:
    load_torch("transnormer.mixers.registry")
    from transnormer.mixers.registry import list_mixers, mixer_class, mixer_options

    rows = []
    for name in list_mixers():
        traits = mixer_class(name).traits
        forms = [form for form, able in (("causal", traits.causal), ("bidirectional", traits.bidirectional)) if able]
        state = "constant" if traits.recurrent else "grows with T" if traits.cache else "none"
        options = ", ".join(mixer_options(name))
        matrix = "no" if traits.no_matrix else "yes"
        rows.append((name, traits.summary, " + ".join(forms), traits.cost, state, matrix, options, traits.paper))
    print_table(["mixer", "what it is", "masks", "time", "decode state", "matrix", "options", "paper"], rows)


def _presets() -> None:
    from transnormer.models.presets import list_presets, preset_fields

    rows = []
    for name in list_presets():
        model = preset_fields(name)
        runs = [f"{count} {mixer}" for mixer, count in Counter(model.mixers).items()]
        shape = f"{model.num_hidden_layers} x {model.hidden_size}, {model.num_attention_heads} heads"
        feed_forward = f"{model.feed_forward} {model.intermediate_size}"
        rows.append((name, " + ".join(runs), shape, feed_forward, f"{model.vocab_size:,}", model.causal))
    print_table(["preset", "layers", "shape", "feed-forward", "vocabulary", "causal"], rows)


def _recipes() -> None:
    from transnormer.config.load import load_config
    from transnormer.config.recipe import about_recipe, list_recipes

    rows = []
    for name in list_recipes():
        config = load_config(name)
        counts_epochs = config.task.startswith("glue/") and config.glue.epochs
        length = f"{config.glue.epochs:g} epochs" if counts_epochs else f"{config.train.steps:,}"
        rows.append((name, about_recipe(name), config.task, config.model.name, length))
    print_table(["recipe", "what it is", "task", "preset", "steps"], rows)


def _tasks() -> None:
    from transnormer.tasks.registry import TASKS

    rows = [
        (name, task.about, task.primary_metric, "higher" if task.higher_is_better else "lower")
        for name, task in sorted(TASKS.items())
    ]
    print_table(["task", "what is learned", "chosen by", "better is"], rows)


def _tables() -> None:
    from transnormer.experiments.paper.contents import entries

    results = Path("results")
    rows = [(name, entry.about, entry.command, entry.records_in_words(results)) for name, entry in entries().items()]
    print_table(["table", "what it is", "command", "records in results/"], rows)
