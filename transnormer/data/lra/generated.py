"""The two tasks that need no download: ListOps and Pathfinder as sources, generated or from the official files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from transnormer.data.example_source import Example, Part, Source, as_one_split, consecutive, find_folder, held_out
from transnormer.data.excerpts import sha256_of
from transnormer.data.labelled_lines import count_lines
from transnormer.data.lra import listops, pathfinder
from transnormer.data.lra.spec import SPECS
from transnormer.errors import DataError

LISTOPS_FILES = {"train": "basic_train.tsv", "valid": "basic_val.tsv", "test": "basic_test.tsv"}
LISTOPS_HINT = SPECS["lra/listops"].about_source
PATHFINDER_HINT = SPECS["lra/pathfinder"].about_source


def generated_listops(seed: int, limit: int | None, processes: int) -> Source:
    """96,000, 2,000 and 2,000 expressions, all different."""
    sizes = _limited(listops.SPLITS, limit)
    count = sum(sizes.values())

    def read() -> Iterator[Example]:
        return (((tokens,), label) for tokens, label in listops.generate(count, seed, processes))

    return _generated(sizes, read, {"seed": seed})


def official_listops(source: str | Path) -> Source:
    """The three files of the release."""
    inside = ("listops-1000", "lra_release/listops-1000", "lra_release/lra_release/listops-1000")
    folder = find_folder(source, inside, LISTOPS_FILES["train"], LISTOPS_HINT)
    parts = {}
    for split, name in LISTOPS_FILES.items():
        path = folder / name
        if not path.is_file():
            raise DataError(f"{path} is missing", LISTOPS_HINT)
        count = count_lines(path) - 1  # the first line is the header
        parts[split] = Part(count, _listops_reader(path), as_one_split(split, count))
    files = {name: sha256_of(folder / name) for name in LISTOPS_FILES.values()}
    return Source(parts, "the source's own", {"sources": files})


def _listops_reader(path: Path) -> Callable[[], Iterator[Example]]:
    return lambda: (((tokens,), label) for tokens, label in listops.read_official_tsv(path))


def generated_pathfinder(seed: int, limit: int | None, size: int, processes: int) -> Source:
    """160,000, 20,000 and 20,000 images."""
    sizes = _limited(pathfinder.SPLITS, limit)
    count = sum(sizes.values())

    def read() -> Iterator[Example]:
        images = pathfinder.generate(count, seed, size, processes)
        return (((image.reshape(-1),), label) for image, label, _ in images)

    return _generated(sizes, read, {"seed": seed, "size": size})


def official_pathfinder(source: str | Path, size: int, seed: int) -> Source:
    """The images of the release, which has no splits: a tenth for valid and a tenth for test, drawn at random."""
    release = f"pathfinder{size}/curv_contour_length_14"
    inside = ("curv_contour_length_14", release, f"lra_release/{release}", f"lra_release/lra_release/{release}")
    folder = find_folder(source, inside, "metadata", PATHFINDER_HINT)

    def read() -> Iterator[Example]:
        images = pathfinder.read_official_folder(folder, size)
        return (((image.reshape(-1),), label) for image, label, _ in images)

    # Images of zero bytes are left out, so only reading them all says how many there are.
    count, digest = 0, hashlib.sha256()
    for (pixels,), label in read():
        digest.update(pixels.tobytes() + bytes([label]))
        count += 1
    rule = f"a tenth for valid and a tenth for test, drawn with seed {seed}"
    origin = {"sources": {f"pixels and labels of {folder.name}": digest.hexdigest()}}
    return Source({"all": Part(count, read, held_out(count, seed, "valid", "test"))}, rule, origin)


def _generated(sizes: dict[str, int], read: Callable[[], Iterator[Example]], arguments: dict[str, int]) -> Source:
    part = Part(sum(sizes.values()), read, consecutive(sizes))
    return Source({"all": part}, "consecutive parts of one generated set", {"generated": arguments})


def _limited(sizes: dict[str, int], limit: int | None) -> dict[str, int]:
    return {name: min(size, limit or size) for name, size in sizes.items()}
