"""YAML in and out: plain values only, no tags, no aliases, no duplicate keys; the line of every key is remembered.

Scalars follow YAML 1.2's core schema, so `5e-4` is a number, and `on`, `no` and `2024-01-01` are text.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from transnormer.errors import ConfigError

KeyPath = tuple[str, ...]
Lines = dict[KeyPath, int]

_FLOAT = re.compile(r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan)$")
# Python refuses to convert longer strings of digits than 4300; a number that long is no setting, so it stays a float.
_INT = re.compile(r"^[-+]?[0-9]{1,40}$")
_CONSTANTS = {"": None, "~": None, "null": None, "true": True, "false": False}
_PLAIN_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map")}


class _Loader(yaml.SafeLoader):
    """Resolves nothing by itself: every plain scalar arrives as text, and every explicit tag stands out."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - a class attribute of PyYAML, not annotated there


class _Dumper(yaml.SafeDumper):
    """Quotes text that YAML 1.1 *or* 1.2 would read as something else, so that any reader sees the same values."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # PyYAML writes Unicode's own line breaks as they are and reads them back as \n, unless they are escaped.
    style = '"' if any(char in text for char in "\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def parse_yaml(text: str, source: str) -> tuple[Any, Lines]:
    """The value of one YAML document and the line each key stands on; faults are ConfigErrors that name `source`."""
    lines: Lines = {}
    try:
        node = yaml.compose(text, Loader=_Loader)
        value = None if node is None else _value(node, (), lines, set(), source)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}, line {mark.line + 1}, column {mark.column + 1}" if mark else source
        raise ConfigError(f"{where}: not valid YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not valid YAML: {str(error).splitlines()[0]}") from error
    except RecursionError as error:
        raise ConfigError(f"{source}: not a recipe: nested too deeply") from error
    return value, lines


def dump_yaml(value: Any) -> str:
    """YAML text that `parse_yaml` reads back to the same value."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


def _value(node: yaml.Node, path: KeyPath, lines: Lines, seen: set[int], source: str) -> Any:
    where = f"{source}, line {node.start_mark.line + 1}"
    if node.tag not in _PLAIN_TAGS:
        tag = node.tag.replace("tag:yaml.org,2002:", "!!")
        raise ConfigError(f"{where}: YAML tag {tag} is not allowed", hint="write the plain value")
    if id(node) in seen:
        raise ConfigError(f"{where}: YAML aliases (*name) are not allowed", hint="write the value out")
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node.value) if node.style is None else node.value
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*path, str(i)), lines, seen, source) for i, item in enumerate(node.value)]
    mapping: dict[str, Any] = {}
    for key_node, item in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError(f"{where}: a key must be a plain word")
        key = key_node.value
        line = key_node.start_mark.line + 1
        if key in mapping:
            raise ConfigError(f"{source}, line {line}: key '{'.'.join((*path, key))}' is given twice")
        lines[(*path, key)] = line
        mapping[key] = _value(item, (*path, key), lines, seen, source)
    return mapping


def _scalar(text: str) -> str | int | float | bool | None:
    lowered = text.lower()
    if lowered in _CONSTANTS:
        return _CONSTANTS[lowered]
    if _INT.match(text):
        return int(text)
    if _FLOAT.match(lowered):
        return float(lowered.replace(".inf", "inf").replace(".nan", "nan"))
    return text
