"""Where examples come from: the parts of a source, and which of their examples go to which split."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transnormer.data.sampling import generator
from transnormer.errors import DataError
from transnormer.files import read_errors

# A Philox counter of its own, apart from those of `transnormer.data.sampling` and of the generators.
HOLDING_OUT = 32
HELD_OUT = 0.1
_LARGEST_FILE = 2**28

Example = tuple[tuple[np.ndarray, ...], int]  # its sequence, or the two of a pair, and its label


@dataclass(frozen=True)
class Part:
    """Examples in the order of the source; `splits` has the numbers of those that go to each split, ascending."""

    count: int
    read: Callable[[], Iterator[Example]]
    splits: dict[str, np.ndarray]


@dataclass(frozen=True)
class Source:
    """All parts by name, how they were split, in words, and for the manifest where they are from."""

    parts: dict[str, Part]
    split_rule: str
    origin: dict[str, Any]


def as_one_split(split: str, count: int) -> dict[str, np.ndarray]:
    """A part that is a split as it stands."""
    return {split: np.arange(count)}


def consecutive(sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """Splits one after the other, for examples that are drawn independently."""
    ends = np.cumsum(list(sizes.values()))
    return {name: np.arange(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}


def held_out(count: int, seed: int, *names: str) -> dict[str, np.ndarray]:
    """A tenth of a part, chosen at random, goes to each of `names`, the rest to train."""
    order = generator(seed, count, HOLDING_OUT).permutation(count)
    size = round(HELD_OUT * count)
    if not 0 < len(names) * size < count:
        raise DataError(f"{count} examples are too few to hold a tenth of them out", "give more of them")
    splits = {name: np.sort(order[size * index : size * (index + 1)]) for index, name in enumerate(names)}
    return {"train": np.sort(order[size * len(names) :]), **splits}


def evenly(numbers: np.ndarray, limit: int | None) -> np.ndarray:
    """At most `limit` of the numbers, evenly spaced, so that a sorted source keeps its balance of labels."""
    if limit is None or limit >= len(numbers):
        return numbers
    return numbers[np.arange(limit) * len(numbers) // limit]


def find_folder(source: str | Path, inside: Iterable[str], wanted: str, hint: str) -> Path:
    """The folder that holds `wanted`: the source itself, or the first of the folders `inside` it."""
    source = Path(source)
    if not source.exists():
        raise DataError(f"{source} does not exist", hint)
    for folder in (source, *(source / name for name in inside)):
        if (folder / wanted).exists():
            return folder
    raise DataError(f"{source} has no {wanted}", hint)


def read_bytes(path: Path) -> bytes:
    """All of a file, or a DataError that names it; no file of the data sets that are read whole is large."""
    with read_errors(path), path.open("rb") as file:
        content = file.read(_LARGEST_FILE + 1)
    if len(content) > _LARGEST_FILE:
        raise DataError(f"{path} is larger than {_LARGEST_FILE:,} bytes", "no published file is: download it again")
    return content


def hash_of_files(files: Iterable[tuple[str, Path]]) -> str:
    """One sha256 over the names and contents of many files."""
    digest = hashlib.sha256()
    for name, path in files:
        content = read_bytes(path)
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
