"""`transnormer list`: what can be named in a recipe, and the tables that can be reproduced."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Annotated

import typer

from transnormer.cli.console import print_table


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
    from transnormer.mixers.registry import list_mixers, mixer_class, mixer_options

    rows = []
    for name in list_mixers():
        traits = mixer_class(name).traits
        forms = [form for form, able in (("causal", traits.causal), ("bidirectional", traits.bidirectional)) if able]
        state = "constant" if traits.recurrent else "grows with T" if traits.cache else "none"
        options = ", ".join(mixer_options(name))
        rows.append((name, traits.summary, " + ".join(forms), traits.cost, state, options, traits.paper))
    print_table(["mixer", "what it is", "masks", "time", "decode state", "options", "paper"], rows)


def _presets() -> None:
    from transnormer.models.presets import list_presets, preset

    rows = []
    for name in list_presets():
        config = preset(name)
        runs = [f"{count} {mixer}" for mixer, count in Counter(config.mixers).items()]
        shape = f"{config.num_hidden_layers} x {config.hidden_size}, {config.num_attention_heads} heads"
        feed_forward = f"{config.feed_forward} {config.intermediate_size}"
        rows.append((name, " + ".join(runs), shape, feed_forward, f"{config.vocab_size:,}", config.causal))
    print_table(["preset", "layers", "shape", "feed-forward", "vocabulary", "causal"], rows)


def _recipes() -> None:
    from transnormer.config.load import load_config
    from transnormer.config.recipe import about_recipe, list_recipes

    rows = []
    for name in list_recipes():
        config = load_config(name)
        rows.append((name, about_recipe(name), config.task, config.model.name, f"{config.train.steps:,}"))
    print_table(["recipe", "what it is", "task", "preset", "steps"], rows)


def _tasks() -> None:
    from transnormer.tasks.registry import list_tasks, task_class

    rows = []
    for name in list_tasks():
        task = task_class(name)
        rows.append((name, task.about(name), task.primary_metric, "higher" if task.higher_is_better else "lower"))
    print_table(["task", "what is learned", "chosen by", "better is"], rows)


def _tables() -> None:
    from transnormer.experiments.paper import list_tables

    print_table(["table", "what it is"], list(list_tables().items()))
