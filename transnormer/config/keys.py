"""The flat table of every key: its path, what it expects, its default and meaning, all read from the schema."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from transnormer.config.renamed import RENAMED
from transnormer.config.schema import RunConfig
from transnormer.config.section import Section

_NOUNS = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
_PLURALS = {int: "integers", float: "numbers", str: "strings", bool: "booleans"}
_BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


@dataclass(frozen=True)
class Key:
    """One key of a recipe."""

    path: str
    expects: str
    default: Any
    description: str
    choices: tuple[str, ...] = ()
    is_mapping: bool = False
    is_text: bool = False


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested configuration by dotted keys: {'train.steps': 100}."""
    keys: dict[str, Any] = {}
    for key, value in tree.items():
        keys.update(flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return keys


def changed_keys(
    before: dict[str, Any], now: dict[str, Any], besides: Collection[str] = ()
) -> dict[str, tuple[Any, Any]]:
    """Every dotted key whose value is another in two nested configurations, with both; `besides` may differ."""
    old, new = flat(before), flat(now)
    keys = sorted((old.keys() | new.keys()) - set(besides))
    return {key: (old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)}


@cache
def all_keys() -> dict[str, Key]:
    """Every key by its dotted path, in the order of the schema."""
    return {key.path: key for key in _collect(RunConfig, "")}


@cache
def all_sections() -> dict[str, str]:
    """Every section by name, with the first line of its docstring."""
    return {
        name: (field.annotation.__doc__ or "").partition("\n")[0]
        for name, field in RunConfig.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
    }


def nearest_key(wrong: str) -> str:
    """The hint for an unknown key: the nearest right one, or the keys that could stand there.

    Tried in turn: the same last word elsewhere (steps, for train.steps), a misspelling in the same section, one
    anywhere, and the key whose description has these words (learning_rate, for optim.lr).
    """
    if renamed := RENAMED.get(wrong):
        return f"it is now '{renamed.now}'"
    keys = all_keys()
    section, _, leaf = wrong.rpartition(".")
    siblings = {_leaf(key): key for key in keys if key.rpartition(".")[0] == section}
    leaves = {_leaf(key): key for key in keys}
    same_leaf = [key for key in keys if _leaf(key) == leaf]
    found = (
        max(same_leaf, key=lambda key: difflib.SequenceMatcher(None, wrong, key).ratio(), default=None)
        or siblings.get(_close(leaf, siblings, 0.6))
        or leaves.get(_close(leaf, leaves, 0.84))
        or _close(wrong, [*keys, *all_sections()], 0.8)
        or next((path for path, key in keys.items() if len(leaf) > 2 and _has_words(key.description, leaf)), None)
    )
    if found:
        return f"did you mean '{found}'?"
    return f"known here: {', '.join(siblings.values())}" if siblings and section else "see `transnormer explain`"


def _leaf(path: str) -> str:
    return path.rpartition(".")[2]


def _close(word: str, known: Iterable[str], cutoff: float) -> str:
    return next(iter(difflib.get_close_matches(word, known, n=1, cutoff=cutoff)), "")


def _has_words(description: str, leaf: str) -> bool:
    return re.search(rf"\b{re.escape(leaf.replace('_', ' '))}\b", description) is not None


def _collect(section: type[Section], prefix: str) -> list[Key]:
    keys: list[Key] = []
    for name, field in section.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, Section):
            keys += _collect(annotation, f"{prefix}{name}.")
        else:
            keys.append(
                Key(
                    path=f"{prefix}{name}",
                    expects=_expects(annotation, list(field.metadata)),
                    default=field.get_default(call_default_factory=True),
                    description=field.description or "",
                    choices=_choices(annotation),
                    is_text=str in (annotation, *get_args(annotation)),
                    is_mapping=any(get_origin(part) is dict for part in (annotation, *get_args(annotation))),
                )
            )
    return keys


def _choices(annotation: Any) -> tuple[str, ...]:
    if get_origin(annotation) is Literal:
        return tuple(str(choice) for choice in get_args(annotation))
    return next((found for part in get_args(annotation) if (found := _choices(part))), ())


def _expects(annotation: Any, constraints: list[Any]) -> str:
    """The type in words, e.g. 'an integer > 0, or null'."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = [c for part in parts[1:] for c in (part.metadata if isinstance(part, FieldInfo) else [part])]
        return _expects(parts[0], constraints + inner)
    if origin in (Union, types.UnionType):
        kinds = [_expects(part, constraints) for part in parts if part is not type(None)]
        return " or ".join(kinds) + (", or null" if type(None) in parts else "")
    if origin is Literal:
        return "one of: " + ", ".join(map(str, parts))
    if origin is tuple:
        return f"a list of {len(parts)} {_plural(parts[0], constraints)}"
    if origin is list:
        return f"a list of {_plural(parts[0], constraints)}"
    if origin is dict:
        return "a mapping of options by name, {name: {option: value}}"
    bounds = [f"{sign} {getattr(c, name):,}" for c in constraints for name, sign in _BOUNDS.items() if hasattr(c, name)]
    return " and ".join([f"{_NOUNS[annotation]} {bounds[0]}", *bounds[1:]]) if bounds else _NOUNS[annotation]


def _plural(annotation: Any, constraints: list[Any]) -> str:
    inner = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    return _expects(annotation, constraints).replace(_NOUNS[inner], _PLURALS[inner])
