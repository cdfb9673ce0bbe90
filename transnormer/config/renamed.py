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
    values: Mapping[str, str] = field(default_factory=dict)
    # The tasks in which it is called so; all: none.
    family: str | None = None

    def value(self, before: Any) -> Any:
        """Today's name of a value."""
        return self.values.get(before, before) if isinstance(before, str) else before

    def hint(self, before: Any) -> str:
        """What to write instead."""
        return "leave it out" if before is None else f"write {self.now}={self.value(before)}"


RENAMED = {
    "train.speed": Renamed("train.execution", {"graph": "cuda_graph"}),
    "protocol": Renamed("lra.protocol"),
    "data.limit_examples": Renamed("lra.limit_examples"),
    "data.eval_windows": Renamed("lra.valid_examples", family="lra"),
}


def task_family(task: str) -> str:
    """'lra' of lra/text; a task without a family is one by itself."""
    return task.partition("/")[0]


def upgraded(tree: dict[str, Any]) -> dict[str, Any]:
    """The nested keys of a run that an older version wrote, under today's names; null was every old key's default."""
    tree = copy.deepcopy(tree)
    family = task_family(str(tree.get("task")))
    for old, renamed in RENAMED.items():
        if renamed.family in (None, family) and (value := _pop(tree, old.split("."))) is not None:
            *sections, leaf = renamed.now.split(".")
            target = tree
            for name in sections:
                target = target.setdefault(name, {})
            target[leaf] = renamed.value(value)
    return tree


def _pop(tree: Any, path: list[str]) -> Any:
    """Take a key out; None where there is none."""
    if not isinstance(tree, dict):
        return None
    return tree.pop(path[0], None) if len(path) == 1 else _pop(tree.get(path[0]), path[1:])
