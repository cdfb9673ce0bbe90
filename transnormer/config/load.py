"""Resolve a run's config in layers, defaults <- recipe, over those it extends <- key=value; who set what is known."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from transnormer.config.init_folder import model_keys
from transnormer.config.keys import Key, all_keys, all_sections, flat, nearest_key
from transnormer.config.recipe import Recipe, read_recipe, read_with_parents
from transnormer.config.renamed import RENAMED, upgraded
from transnormer.config.schema import RunConfig
from transnormer.config.yaml_text import KeyPath, dump_yaml, parse_yaml
from transnormer.errors import ConfigError

Tree = dict[str, Any]

# Keys that say how data is prepared: idle beside a store.
PREPARATION_KEYS = (
    *(f"data.{name}" for name in ("corpus", "source", "tokenizer", "vocab_size", "limit_bytes")),
    "lra.limit_examples",
    "glue.max_length",
    *(f"recall.{name}" for name in ("pairs", "sequence_length", "vocab_size", "train_examples", "valid_examples")),
)
ON_CPU = "on_cpu"  # section of a recipe: what differs of it on a CPU, where its own size would take days
_OVERRIDE = "override "  # how the origin of a value from the command line begins


@dataclass(frozen=True)
class Resolved:
    """A valid config and, for every key that a recipe or an override sets, which one did."""

    config: RunConfig
    origins: dict[str, str]

    def set_by_cpu(self) -> dict[str, Any]:
        """The keys, with their values, that are what they are because the run is on a CPU."""
        keys = [key for key, origin in self.origins.items() if origin.endswith(f"({ON_CPU})")]
        values = flat(self.config.model_dump(mode="json"))
        return {key: values[key] for key in keys}


def load_config(recipe: str | Path, overrides: Iterable[str] = ()) -> RunConfig:
    """The config of a shipped recipe or a YAML file with `key=value` overrides on top."""
    return resolve(recipe, overrides).config


def resolve(recipe: str | Path, overrides: Iterable[str] = (), *, on_cpu: bool = False) -> Resolved:
    """Like load_config, with the origin of each value; `on_cpu`: with what the recipe says about CPUs."""
    tree, origins = _layers(recipe, overrides, on_cpu)
    _settle_store(tree, origins)
    _settle_init(tree, origins)
    return Resolved(_validated(tree, origins), origins)


def read_config(path: Path) -> RunConfig:
    """The config of a run as this or an older version dumped it, keys without effect beside a store included."""
    read = read_recipe(path)
    if not read.tree:
        raise ConfigError(f"{path} is empty, and that of a run has every key", hint="restore it from a backup")
    tree: Tree = {}
    origins: dict[str, str] = {}
    _lay_over(tree, upgraded(read.tree), (), origins, read.origin)
    return _validated(tree, origins)


def overridden(config: RunConfig, overrides: Iterable[str]) -> RunConfig:
    """A config with `key=value` overrides on top."""
    tree: Tree = {}
    origins: dict[str, str] = {}
    _lay_over(tree, config.model_dump(mode="json"), (), origins, _constant("the run's config"))
    for text in overrides:
        _lay_over(tree, _parse_override(text), (), origins, _constant(f"{_OVERRIDE}{text}"))
    return _validated(tree, origins)


def check_overrides(overrides: Iterable[str]) -> None:
    """Raise for an override that no recipe could take: it is not key=value, or there is no such key."""
    for text in overrides:
        _lay_over({}, _parse_override(text), (), {}, _constant(f"{_OVERRIDE}{text}"))


def dump_config(config: RunConfig) -> str:
    """YAML text of every key; `load_config` of it gives an equal config."""
    return dump_yaml(config.model_dump(mode="json"))


def config_hash(config: RunConfig) -> str:
    """A hex digest that two configs share exactly when all their values are equal."""
    canonical = json.dumps(config.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _layers(recipe: str | Path, overrides: Iterable[str], on_cpu: bool) -> tuple[Tree, dict[str, str]]:
    """What a recipe and the overrides set, not yet validated, and the origin of each value."""
    tree: Tree = {}
    origins: dict[str, str] = {}
    for read in read_with_parents(recipe):
        smaller = read.tree.pop(ON_CPU, None) or {}
        _lay_over(tree, read.tree, (), origins, read.origin)
        origin_on_cpu = partial(_origin_on_cpu, read)
        # Also where it is not used: a mistake in it is told on every machine.
        _lay_over(*((tree, smaller, (), origins) if on_cpu else ({}, smaller, (), {})), origin_on_cpu)
    for text in overrides:
        _lay_over(tree, _parse_override(text), (), origins, _constant(f"{_OVERRIDE}{text}"))
    return tree, origins


def _origin_on_cpu(recipe: Recipe, path: KeyPath) -> str:
    return f"{recipe.origin((ON_CPU, *path))} ({ON_CPU})"


def _validated(tree: Tree, origins: dict[str, str]) -> RunConfig:
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        raise _in_our_words(error, origins) from None


def _settle_store(tree: Tree, origins: dict[str, str]) -> None:
    """A store is prepared already: refuse the keys that say how to prepare one.

    A store on the command line takes the place of a recipe's corpus. A dumped config has every key, idle ones at their
    defaults.
    """
    if tree.get("data", {}).get("store") is None:
        return
    idle = []
    for key in PREPARATION_KEYS:
        section, _, name = key.partition(".")
        value = tree.get(section, {}).get(name)
        if value is None:
            continue
        if origins[key].startswith(_OVERRIDE):
            idle.append(key)
        elif origins["data.store"].startswith(_OVERRIDE):
            del tree[section][name], origins[key]
        elif value != all_keys()[key].default:
            idle.append(key)
    if idle:
        has, it = ("has", "it") if len(idle) == 1 else ("have", "them")
        raise ConfigError(
            f"{', '.join(idle)} {has} no effect beside data.store ({origins['data.store']})",
            hint=f"leave {it} out, or set data.store=null to prepare the data anew",
        )


def _settle_init(tree: Tree, origins: dict[str, str]) -> None:
    """Weights to start from bring their model, below what else is set of it, unless a preset is given beside them.

    Those on the command line take the place of a recipe's preset.
    """
    model = tree.get("model", {})
    if model.get("init") is None:
        return
    named = next((key for key in ("preset", "base") if model.get(key) is not None), None)
    is_typed = [origins[f"model.{key}"].startswith(_OVERRIDE) for key in ("init", named) if key]
    if named and is_typed != [True, False]:
        return
    folder = Path(model["init"]).absolute()
    theirs = {"preset": None, **model_keys(folder)}
    for key in ("preset", "base"):
        model.pop(key, None)
    for key, value in theirs.items():
        if model.get(key) is None:
            model[key] = value
            origins[f"model.{key}"] = f"model.init={folder}"


def _constant(origin: str) -> Callable[[KeyPath], str]:
    return lambda path: origin


def _parse_override(text: str) -> Tree:
    key, equals, value_text = text.partition("=")
    parts = key.strip().split(".")
    if not equals:
        raise ConfigError(f"'{text}' is not an override", hint="write key=value, e.g. train.steps=100")
    if not all(parts):
        raise ConfigError(f"override '{text}' has an empty key", hint="write key=value, e.g. train.steps=100")
    known = all_keys().get(".".join(parts))
    if known and known.is_text and value_text.strip()[:1] not in ("'", '"'):
        # As typed: a pattern such as *.txt or a path with a # in it means something else to YAML.
        value: Any = None if value_text.strip() in ("", "null", "~") else value_text
    else:
        value, _ = parse_yaml(value_text, f"override {text}")
    tree: Tree = {parts[-1]: value}
    for part in reversed(parts[:-1]):
        tree = {part: tree}
    return tree


def _lay_over(
    tree: Tree, layer: Tree, prefix: KeyPath, origins: dict[str, str], origin: Callable[[KeyPath], str]
) -> None:
    """Lay one layer over the tree in place: sections and mappings merge key by key, values replace values."""
    for name, value in layer.items():
        path = (*prefix, name)
        dotted = ".".join(path)
        key = all_keys().get(dotted)
        if "." in name:
            raise ConfigError(
                f"{dotted}: keys in a file are nested, not dotted, in {origin(path)}",
                hint=f"write '{name.partition('.')[0]}:' and, indented below it, '{name.partition('.')[2]}: ...'",
            )
        if dotted in all_sections():
            if not isinstance(value, dict | None):
                example = next(known for known in all_keys() if known.startswith(f"{dotted}."))
                raise ConfigError(
                    f"{dotted}: is a section, not a value; got {_shown(value)}, in {origin(path)}",
                    hint=f"set one of its keys, e.g. {example}",
                )
            # A section whose keys are all commented out reads as null.
            _lay_over(tree.setdefault(name, {}), value or {}, path, origins, origin)
        elif key is None:
            full = ".".join([dotted, *_first_path(value)])
            if renamed := RENAMED.get(dotted):
                raise ConfigError(f"{dotted} is now {renamed.now}, in {origin(path)}", hint=renamed.hint(value))
            raise ConfigError(f"{full}: no such key, in {origin(path)}", hint=nearest_key(full))
        else:
            origins[dotted] = origin(path)
            tree[name] = _merged(tree.get(name), value) if key.is_mapping else value


def _first_path(value: Any) -> list[str]:
    """The names that lead to the first value inside: ['preset'] for {preset: t1}."""
    if not (isinstance(value, dict) and value):
        return []
    name, inner = next(iter(value.items()))
    return [name, *_first_path(inner)]


def _merged(below: Any, above: Any) -> Any:
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return {**below, **{name: _merged(below.get(name), value) for name, value in above.items()}}


def _in_our_words(error: ValidationError, origins: dict[str, str]) -> ConfigError:
    """The first fault that pydantic found: the key, what it expects, what was given and where."""
    first = error.errors(include_url=False)[0]
    location = [str(part) for part in first["loc"]]
    key = next((key for depth in (1, 2) if (key := all_keys().get(".".join(location[:depth])))), None)
    rule = first.get("ctx", {}).get("error")
    if key is None or isinstance(rule, ConfigError):  # a rule of ours, whose message names the keys
        return rule if isinstance(rule, ConfigError) else ConfigError(first["msg"])
    value = first["input"]
    inner = [] if first["type"] == "missing" else location[key.path.count(".") + 1 :]
    at = f" at {key.path}[{inner[0]}]" if inner and inner[0].isdigit() else f" at {'.'.join([key.path, *inner[:2]])}"
    message = f"{key.path}: expected {key.expects}; got {_shown(value)}{at if inner else ''}, in {origins[key.path]}"
    return ConfigError(message, hint=_fix(key, value))


def _fix(key: Key, value: Any) -> str | None:
    if isinstance(value, float) and value.is_integer() and key.expects.startswith("an integer"):
        return f"write {int(value)}"
    if isinstance(value, str) and value.lower() == "none" and key.expects.endswith("or null"):
        return "write null"
    if near := difflib.get_close_matches(str(value), key.choices, n=1, cutoff=0.5):
        return f"did you mean '{near[0]}'?"
    return None


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f"{value!r} (a string)" if len(value) <= 60 else f"{value[:60]!r}... (a string)"
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:60]}..."
