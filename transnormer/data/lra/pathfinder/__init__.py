"""Pathfinder: are two markers joined by a dashed contour? (Linsley et al. 2018), as in Long-Range Arena.

Our own generator of the pictures that LRA calls hard, `curv_contour_length_14`: the procedure and so the statistics of
the original (github.com/drewlinsley/pathfinder) with every paddle drawn beforehand and hundreds of pictures at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from transnormer.data.lra.pathfinder.contours import grow_distractors, grow_pairs
from transnormer.data.lra.pathfinder.official import read_official_folder
from transnormer.data.lra.pathfinder.picture import draw, positions
from transnormer.data.lra.pathfinder.settings import SETTINGS, Settings, settings_for
from transnormer.data.lra.pathfinder.stamps import stamps_for
from transnormer.data.lra.streams import PATHFINDER
from transnormer.data.sampling import generator
from transnormer.data.workers import in_order
from transnormer.errors import ConfigError

__all__ = [
    "NUM_CLASSES",
    "SETTINGS",
    "SPLITS",
    "Settings",
    "generate",
    "read_official_folder",
    "shard",
]

NUM_CLASSES = 2
SPLITS = {"train": 160_000, "valid": 20_000, "test": 20_000}  # consecutive parts of one set
SHARD_IMAGES = 100

Example = tuple[np.ndarray, int, dict[str, Any]]


def generate(count: int, seed: int, size: int = 32, processes: int = 2) -> Iterator[Example]:
    """`count` pictures as (uint8 [size, size], label, metadata); a smaller count gives the beginning of a larger one.

    Label 1: one contour joins the markers. Metadata: the official columns, and where everything lies, in pixels as
    (y, x): `markers` [2, 2], `contours` [2, 14, 4] and `distractors` [up to 5 (8 at size 128), 4, 4], a paddle being
    the (y, x) of its tail and of its head. The set depends on seed and size alone, not on the number of processes.
    """
    settings_for(size)
    if count < 0:
        raise ConfigError(f"count is {count}", "ask for 0 pictures or more")
    generator(seed, 0, PATHFINDER)  # complains about a bad seed here, not in another process
    shards = in_order(partial(shard, seed, size=size), range(-(-count // SHARD_IMAGES)), processes)
    try:
        yield from islice((example for examples in shards for example in examples), count)
    finally:
        shards.close()


def shard(seed: int, index: int, size: int = 32) -> list[Example]:
    """Pictures index * SHARD_IMAGES onwards of a set, a pure function of (seed, index, size)."""
    settings, rng = settings_for(size), generator(seed, index, PATHFINDER)
    margins = rng.choice(settings.paddle_margins, size=SHARD_IMAGES)
    examples: dict[int, Example] = {}
    for margin in settings.paddle_margins:
        numbers = np.flatnonzero(margins == margin)
        examples |= zip(numbers.tolist(), _pictures(settings, margin, rng, len(numbers)), strict=True)
    return [examples[number] for number in range(SHARD_IMAGES)]


def _pictures(settings: Settings, margin: int, rng: np.random.Generator, count: int) -> Iterator[Example]:
    paddles = stamps_for(settings.size, margin)
    pairs, taken = grow_pairs(paddles, rng, count)
    distractors = grow_distractors(paddles, rng, taken)
    labels, origins = rng.integers(2, size=(2, count))
    # A contour has its origin at the tail of the first paddle and its end at the head of the last: both are anchors.
    ends = np.where(labels == 1, origins, 1 - origins)
    numbers = np.arange(count)
    markers = paddles.places(np.stack([pairs[numbers, origins, 0, 1], pairs[numbers, ends, -1, 1]], axis=1))
    pictures = draw(paddles, pairs, distractors, markers)
    for number in range(count):
        shorts = np.stack(distractors[number]) if distractors[number] else pairs[:0, 0, : settings.distractor_length]
        metadata = {
            "label": int(labels[number]),
            "continuity": settings.continuity,
            "contour_length": settings.contour_length,
            "distractor_length": settings.distractor_length,
            "paddle_length": settings.paddle_length,
            "paddle_thickness": settings.paddle_thickness,
            "paddle_margin": int(margin),
            "num_contrasts": 1,
            "markers": markers[number],
            "contours": positions(paddles, pairs[number]),
            "distractors": positions(paddles, shorts),
        }
        yield pictures[number], int(labels[number]), metadata
