"""A look at some examples: expressions as trees, text as excerpts, images on a contact sheet."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from transnormer.data.example_source import Example, evenly
from transnormer.data.examples import ExampleStore
from transnormer.data.lra import listops
from transnormer.data.lra.byte_text import to_text
from transnormer.data.lra.prepare import plan
from transnormer.errors import ConfigError

EXCERPT = 400  # characters of a text
IMAGE_CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
PATHFINDER_CLASSES = ("apart", "joined")


def stored_examples(store: ExampleStore, split: str, count: int) -> list[Example]:
    """Evenly spaced examples of a split."""
    examples = store.split(split)
    return [
        (tuple(examples.sequence(index, which) for which in range(store.sequences)), int(examples.labels[index]))
        for index in evenly(np.arange(len(examples)), count).tolist()
    ]


def source_examples(
    task: str, source: str | None = None, count: int = 1, seed: int = 0, size: int | None = None
) -> list[Example]:
    """The first examples of a generator, or evenly spaced ones of a source, without a store."""
    (part, *_) = plan(task, source, seed, limit=count, size=size, processes=1).source.parts.values()
    if source is None:
        return list(islice(part.read(), count))
    wanted = set(part.splits["train"].tolist())
    return [example for number, example in enumerate(part.read()) if number in wanted]


def is_drawn(task: str) -> bool:
    """Whether examples are images."""
    return task in ("lra/image", "lra/pathfinder")


def as_text(task: str, examples: list[Example]) -> Iterator[str]:
    """Each example in words."""
    for number, (sequences, label) in enumerate(examples):
        lengths = " and ".join(f"{len(ids):,}" for ids in sequences)
        yield f"example {number}: label {label}, {lengths} tokens"
        for ids in sequences:
            yield listops.to_tree_text(ids) if task == "lra/listops" else _excerpt(ids)


def _excerpt(ids: np.ndarray) -> str:
    text = to_text(ids)
    return text if len(text) <= EXCERPT else f"{text[:EXCERPT]} ..."


def draw_contact_sheet(task: str, examples: list[Example], path: Path) -> None:
    """A PNG with all images side by side, each under its label."""
    names = IMAGE_CLASSES if task == "lra/image" else PATHFINDER_CLASSES
    columns = math.ceil(math.sqrt(len(examples)))
    rows = math.ceil(len(examples) / columns)
    figure = Figure(figsize=(1.4 * columns, 1.6 * rows), layout="constrained")
    for index, axes in enumerate(figure.subplots(rows, columns, squeeze=False).flat):
        axes.set_axis_off()
        if index < len(examples):
            ((pixels,), label) = examples[index]
            side = math.isqrt(len(pixels))
            axes.imshow(pixels.reshape(side, side), cmap="gray", vmin=0, vmax=255)
            axes.set_title(f"{label}: {names[label]}", fontsize=8)
    try:
        # Without the software's version in it the same images give the same bytes; other formats have other keys.
        kind = path.suffix[1:].lower() or "png"
        figure.savefig(path, dpi=120, format=kind, metadata={"Software": None} if kind == "png" else None)
    except OSError as problem:
        raise ConfigError(f"cannot write {path}: {problem.strerror}", "choose another --out") from problem
    except ValueError as problem:  # matplotlib's, for an ending it does not know
        raise ConfigError(f"cannot draw {path}: {problem}", "choose an --out that ends in .png") from problem
