"""What the five tasks are: the form of their examples, and how many the published sets have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from transnormer.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Spec:
    """One task. `vocab_size` counts ids, with 0 for padding where `padded`: images have none, and 0 is black."""

    name: str
    summary: str
    vocab_size: int
    num_labels: int
    max_length: int
    sequences: Literal[1, 2] = 1
    padded: bool = True
    generated: bool = False
    published: tuple[tuple[str, int], ...] = ()  # examples in each published part


SPECS = {
    spec.name: spec
    for spec in (
        Spec(
            "lra/listops",
            "the value of a nested list of MIN, MAX, MED and SM over digits",
            vocab_size=16,
            num_labels=10,
            max_length=2000,
            generated=True,
            published=(("train", 96_000), ("valid", 2_000), ("test", 2_000)),
        ),
        Spec(
            "lra/text",
            "the sentiment of a film review (IMDB), read byte by byte",
            vocab_size=257,
            num_labels=2,
            max_length=4000,
            published=(("train", 25_000), ("test", 25_000)),
        ),
        Spec(
            "lra/retrieval",
            "whether one paper cites another (AAN), both read byte by byte",
            vocab_size=257,
            num_labels=2,
            max_length=4000,
            sequences=2,
            published=(("train", 147_086), ("valid", 18_090), ("test", 17_437)),
        ),
        Spec(
            "lra/pathfinder",
            "whether a dashed path joins the two dots of an image, read pixel by pixel",
            vocab_size=256,
            num_labels=2,
            max_length=1024,
            padded=False,
            generated=True,
            published=(("all", 200_000),),
        ),
        Spec(
            "lra/image",
            "the class of a grey CIFAR-10 image, read pixel by pixel",
            vocab_size=256,
            num_labels=10,
            max_length=1024,
            padded=False,
            published=(("train", 50_000), ("test", 10_000)),
        ),
    )
}


def spec_of(task: str) -> Spec:
    """The spec of a task by name."""
    if task not in SPECS:
        raise ConfigError(f"unknown Long-Range Arena task '{task}'", did_you_mean(task, SPECS))
    return SPECS[task]
