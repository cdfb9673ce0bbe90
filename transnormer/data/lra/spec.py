"""What the five tasks are: the form of their examples, and how many the published sets have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from transnormer.errors import ConfigError, did_you_mean

_RELEASE = (
    "of the Long-Range Arena's release, the tar file lra_release.gz that https://github.com/google-research/"
    "long-range-arena links to; it was published without a checksum"
)


@dataclass(frozen=True)
class Spec:
    """One task. `vocab_size` counts ids, with 0 for padding where `padded`: images have none, and 0 is black."""

    name: str
    summary: str
    vocab_size: int
    num_labels: int
    max_length: int
    about_source: str  # where the public files are to be had, and what they are called: nothing is downloaded
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
            about_source="the source is the folder with basic_train.tsv, basic_val.tsv, basic_test.tsv: listops-1000 "
            + _RELEASE,
            generated=True,
            published=(("train", 96_000), ("valid", 2_000), ("test", 2_000)),
        ),
        Spec(
            "lra/text",
            "the sentiment of a film review (IMDB), read byte by byte",
            vocab_size=257,
            num_labels=2,
            max_length=4000,
            about_source="the source is aclImdb_v1.tar.gz of https://ai.stanford.edu/~amaas/data/sentiment/ (Maas et "
            "al. 2011), md5 7c2ac02c03563afcf9b574c7e56c153a, its folder aclImdb/, or a folder with train.jsonl and "
            "test.jsonl (or .tsv)",
            published=(("train", 25_000), ("test", 25_000)),
        ),
        Spec(
            "lra/retrieval",
            "whether one paper cites another (AAN), both read byte by byte",
            vocab_size=257,
            num_labels=2,
            max_length=4000,
            about_source="the source is the folder with new_aan_pairs.train.tsv, new_aan_pairs.eval.tsv, "
            "new_aan_pairs.test.tsv (pairs of the ACL Anthology Network, Radev et al. 2013): tsv_data " + _RELEASE,
            sequences=2,
            published=(("train", 147_086), ("valid", 18_090), ("test", 17_437)),
        ),
        Spec(
            "lra/pathfinder",
            "whether a dashed path joins the two dots of an image, read pixel by pixel",
            vocab_size=256,
            num_labels=2,
            max_length=1024,
            about_source="the source is the folder curv_contour_length_14 with imgs/ and metadata/: in pathfinder32 "
            + _RELEASE,
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
            about_source="the source is cifar-10-python.tar.gz of https://www.cs.toronto.edu/~kriz/cifar.html "
            "(Krizhevsky 2009), md5 c58f30108f718f92721af3b95e74349a, or cifar-10-binary.tar.gz from there, md5 "
            "c32a1d4ab5d03f1284b67883e8d87530, their folders (cifar-10-batches-py/, cifar-10-batches-bin/), or a "
            ".npz file with x_train, y_train, x_test, y_test",
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
