"""Keys that had another name: read as they are in a run's own folder, refused with the new name anywhere else."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Renamed:
    """What a key is called now, and which of its values have another name."""

    now: str
    values: Mapping[Any, Any] = field(default_factory=dict)

    def written(self, value: Any) -> str:
        """How one writes this value now."""
        return f"{self.now}={self.values.get(value, value)}"


RENAMED = {
    "train.speed": Renamed("train.execution", {"graph": "cuda_graph"}),
}


def upgraded(tree: dict[str, Any]) -> dict[str, Any]:
    """The nested keys of a run that an older version wrote, under today's names; null was every old key's default."""
    tree = copy.deepcopy(tree)
    for old, renamed in RENAMED.items():
        section, leaf = _section(tree, old)
        if leaf not in section:
            continue
        value = section.pop(leaf)
        if value is not None:
            target, name = _section(tree, renamed.now)
            target[name] = renamed.values.get(value, value)
    return tree


def _section(tree: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    """The mapping that holds a key of this dotted path, and the key's own name."""
    *sections, leaf = path.split(".")
    for name in sections:
        tree = tree.setdefault(name, {})
    return tree, leaf
