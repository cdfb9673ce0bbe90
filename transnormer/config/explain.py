"""Say what a key means, and where each value of a resolved config came from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transnormer.config.keys import Key, all_keys, all_sections, nearest_key
from transnormer.config.load import resolve
from transnormer.config.renamed import RENAMED
from transnormer.config.schema import RunConfig
from transnormer.errors import ConfigError


@dataclass(frozen=True)
class Setting:
    """One key of a resolved config: what it is, its value, and who set it."""

    key: Key
    value: Any
    origin: str
    on_cpu: Any = None  # the value there, if it is another


def explain(name: str) -> list[Key]:
    """The key of this dotted path, all keys of a section, or all that end so (lr: optim.lr); '' is everything."""
    if name == "":
        return list(all_keys().values())
    if name in all_keys():
        return [all_keys()[name]]
    if name in all_sections():
        return [key for path, key in all_keys().items() if path.startswith(f"{name}.")]
    is_leaf = name not in RENAMED
    if found := [key for path, key in all_keys().items() if is_leaf and path.endswith(f".{name}")]:
        return found
    raise ConfigError(f"{name}: no such key", hint=nearest_key(name))


def explain_recipe(recipe: str | Path, overrides: Iterable[str] = ()) -> list[Setting]:
    """Every key of a recipe's task after resolution, with the line, override or default that decided it."""
    overrides = list(overrides)
    resolved = resolve(recipe, overrides)
    try:
        smaller = resolve(recipe, overrides, on_cpu=True).set_by_cpu()
    except ConfigError:  # what is overridden fits the larger run alone, which is still explained
        smaller = {}
    foreign = resolved.config.foreign_sections()
    return [
        Setting(key, value_of(resolved.config, path), resolved.origins.get(path, "default"), smaller.get(path))
        for path, key in all_keys().items()
        if path.partition(".")[0] not in foreign
    ]


def value_of(config: RunConfig, path: str) -> Any:
    """The value at a dotted path."""
    value: Any = config
    for part in path.split("."):
        value = getattr(value, part)
    return value
