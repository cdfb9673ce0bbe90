"""From a source of examples to a store of them: what decides its contents, and writing it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from transnormer.data.example_source import Example, Part, Source, evenly
from transnormer.data.example_writer import ExampleWriter, Form

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Plan:
    """All that decides the contents of a store; `meta` describes it for the manifest, source files by their hashes."""

    form: Form
    source: Source
    meta: dict[str, Any]

    @classmethod
    def of(cls, form: Form, source: Source, limit: int | None, differences: Mapping[str, str]) -> Self:
        """At most `limit` examples of each split, evenly spaced; `differences` are those to published data."""
        parts = {name: _limited(part, limit) for name, part in source.parts.items()}
        meta = {"split_rule": source.split_rule, "limit": limit, **source.origin}
        if differences:
            meta["differs_from_published"] = dict(differences)
        return cls(form, replace(source, parts=parts), meta)


def write_store(plan: Plan, out: Path, progress: Progress | None = None) -> None:
    """Carries out a plan; `progress` is called now and then with the examples read and their total."""
    form = plan.form
    if differences := plan.meta.get("differs_from_published"):
        log.warning("%s is not the published set: %s; do not compare results", form.task, differences)
    total, done = sum(part.count for part in plan.source.parts.values()), 0
    with ExampleWriter(out, form, plan.meta) as writer:
        for part in plan.source.parts.values():
            for split, (sequences, label) in _routed(part):
                if split:
                    writer.append(split, sequences, label)
                done += 1
                if progress and (done % 100 == 0 or done == total):
                    progress(done, total)


def missing_examples(source: Source, published: Mapping[str, int]) -> dict[str, str]:
    """Per part, where a source has not as many examples as were published."""
    found = {name: source.parts[name].count if name in source.parts else 0 for name in published}
    return {name: f"{found[name]:,} of {count:,}" for name, count in published.items() if found[name] != count}


def _routed(part: Part) -> Iterator[tuple[str | None, Example]]:
    """Each example of a part with the split it goes to, if any."""
    names = list(part.splits)
    split_of = np.full(part.count, len(names))
    for number, name in enumerate(names):
        split_of[part.splits[name]] = number
    for number, example in zip(split_of, part.read(), strict=True):
        yield (names[number] if number < len(names) else None), example


def _limited(part: Part, limit: int | None) -> Part:
    return replace(part, splits={name: evenly(numbers, limit) for name, numbers in part.splits.items()})
