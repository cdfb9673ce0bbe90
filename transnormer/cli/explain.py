"""`transnormer explain`: what a key means, or where each value of a recipe comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer

from transnormer.cli import completion
from transnormer.cli.console import print_table, print_text, show_value
from transnormer.errors import ConfigError

_NEAREST = 5  # names in a hint


def explain(
    name: Annotated[
        str,
        typer.Argument(
            metavar="KEY|RECIPE",
            help="A key, a section, a recipe or a YAML file; nothing lists all keys.",
            autocompletion=completion.explained,
        ),
    ] = "",
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="For a recipe: keys to change.", autocompletion=completion.overrides),
    ] = None,
) -> None:
    """Explain a key, or where each value of a recipe comes from.

    Example: transnormer explain optim.schedule

    Example: transnormer explain lm/wikitext103 train.steps=10000
    """
    from transnormer.config.explain import explain as keys_named
    from transnormer.config.recipe import list_recipes

    if name in list_recipes() or Path(name).suffix in {".yaml", ".yml"}:
        _explain_recipe(name, overrides or [])
        return
    if overrides:
        raise ConfigError(f"'{name}' is no recipe, so nothing can be overridden", hint="see `transnormer list recipes`")
    try:
        keys = keys_named(name)
    except ConfigError:
        _reject(name)
    if len(keys) > 1:
        print_table(["key", "default", "meaning"], [(key.path, key.default, key.description) for key in keys])
        return
    (key,) = keys
    print_text(f"{key.path}\n  {key.description}")
    print_text(f"  expects {key.expects}\n  default {show_value(key.default)}")


def _explain_recipe(name: str, overrides: list[str]) -> None:
    from transnormer.config.explain import explain_recipe

    settings = explain_recipe(name, overrides)
    rows = [
        (setting.key.path, setting.value, setting.origin, "" if setting.on_cpu is None else setting.on_cpu)
        for setting in settings
    ]
    columns = ["key", "value", "set by", "on a CPU"]
    shown = len(columns) if any(row[-1] for row in rows) else len(columns) - 1
    print_table(columns[:shown], [row[:shown] for row in rows])


def _reject(name: str) -> NoReturn:
    from transnormer.config.keys import all_keys, all_sections, nearest_key
    from transnormer.config.recipe import list_recipes

    hint = nearest_key(name)
    near = [recipe for recipe in list_recipes() if name in recipe or recipe in name]
    near = near or [each for each in [*all_sections(), *all_keys()] if name in each]
    if near:
        more = ", ..." if len(near) > _NEAREST else ""
        hint = f"did you mean {' or '.join(map(repr, near[:_NEAREST]))}{more}?"
    raise ConfigError(f"'{name}' is neither a key nor a recipe", hint=hint)
