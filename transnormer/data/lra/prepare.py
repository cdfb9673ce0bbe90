"""From a generator or a download to an example store of one of the five tasks."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from transnormer.data.example_plan import Plan, Progress, missing_examples, write_store
from transnormer.data.example_source import Source
from transnormer.data.example_writer import Form
from transnormer.data.lra.generated import (
    generated_listops,
    generated_pathfinder,
    official_listops,
    official_pathfinder,
)
from transnormer.data.lra.image import open_image
from transnormer.data.lra.retrieval import open_retrieval
from transnormer.data.lra.spec import Spec, spec_of
from transnormer.data.lra.text import open_text
from transnormer.errors import ConfigError
from transnormer.files import require_free

IMAGE_SIZE = 32  # of Pathfinder, where none is asked for
_NOTHING_DRAWN = ("lra/listops", "lra/retrieval")  # tasks whose files have all splits


def prepare(
    task: str,
    out: str | Path,
    *,
    source: str | Path | None = None,
    seed: int = 0,
    limit: int | None = None,
    size: int | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Writes the example store of a task and returns its path. The same arguments give the same bytes, every time.

    task       lra/listops, lra/text, lra/retrieval, lra/pathfinder, lra/image
    source     where the public files lie; lra/listops and lra/pathfinder are generated without one
    seed       of generated examples, and of those that are held out where the source has no validation set
    limit      at most so many examples in each split, evenly spaced over the source
    size       of Pathfinder's images: 32 (default), 64 or 128
    processes  that generate at once (default: one per CPU); they do not change what is written
    progress   called now and then with the examples read and their total
    """
    out = Path(out)
    require_free(out)
    write_store(plan(task, source, seed, limit, size, processes), out, progress)
    return out


def plan(
    task: str,
    source: str | Path | None = None,
    seed: int = 0,
    limit: int | None = None,
    size: int | None = None,
    processes: int | None = None,
) -> Plan:
    """Finds the files and checks the options; nothing is generated yet."""
    spec = spec_of(task)
    if size is not None and task != "lra/pathfinder":
        raise ConfigError(f"{task} has no image size to choose", "leave --size out")
    if spec.name == "lra/pathfinder":
        spec = replace(spec, max_length=(size or IMAGE_SIZE) ** 2)
    if source is not None and seed and task in _NOTHING_DRAWN:
        raise ConfigError(f"{task} is read from {source} as it is: there is nothing to draw", "leave --seed out")
    if source is None and not spec.generated:
        command = f"`transnormer data prepare {task} --source PATH --out STORE`, or data.source=PATH"
        raise ConfigError(f"{task} cannot be generated: it needs a source", f"{command}; {spec.about_source}")
    opened = _open(spec, source, seed, limit, size or IMAGE_SIZE, processes or os.cpu_count() or 1)
    form = Form(spec.name, spec.vocab_size, spec.num_labels, spec.max_length, spec.sequences)
    return Plan.of(form, opened, limit, _differences(spec, opened))


def _open(spec: Spec, source: str | Path | None, seed: int, limit: int | None, size: int, processes: int) -> Source:
    if source is None:
        if spec.name == "lra/listops":
            return generated_listops(seed, limit, processes)
        return generated_pathfinder(seed, limit, size, processes)
    openers: dict[str, Callable[[], Source]] = {
        "lra/listops": lambda: official_listops(source),
        "lra/pathfinder": lambda: official_pathfinder(source, size, seed),
        "lra/text": lambda: open_text(source, seed),
        "lra/image": lambda: open_image(source, seed),
        "lra/retrieval": lambda: open_retrieval(source),
    }
    return openers[spec.name]()


def _differences(spec: Spec, source: Source) -> dict[str, str]:
    """Per part, how the data at hand differ from those that published numbers are about."""
    side = math.isqrt(spec.max_length)
    if spec.name == "lra/pathfinder" and side != IMAGE_SIZE:
        return {"each image": f"{side} x {side} pixels, not {IMAGE_SIZE} x {IMAGE_SIZE}"}
    if "generated" in source.origin:
        return {}
    return missing_examples(source, dict(spec.published))
