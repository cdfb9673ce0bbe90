"""Pathfinder as the Long-Range Arena stores it: imgs/<batch>/sample_<i>.png and metadata/<batch>.npy, which is text."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from PIL import Image

from transnormer.data.example_source import read_bytes
from transnormer.errors import DataError

log = logging.getLogger(__name__)

COLUMNS = (
    "subpath", "filename", "index", "label", "continuity", "contour_length", "distractor_length", "paddle_length",
    "paddle_thickness", "paddle_margin", "num_contrasts",
)  # fmt: skip
_LARGEST_SIDE = 1_024
_UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)  # what Pillow raises for damaged files


def read_official_folder(path: str | Path, size: int | None = None) -> Iterator[tuple[np.ndarray, int, dict[str, Any]]]:
    """(picture, label, metadata) of a folder such as curv_contour_length_14, in the order of its metadata.

    All pictures are of the given size, or else of that of the first. A picture of zero bytes, which the published set
    has, is left out with a warning; anything else that is not as it should be is a DataError with file and line.
    """
    path = Path(path)
    hint = "the source is a folder such as pathfinder32/curv_contour_length_14, with imgs/ and metadata/"
    files = sorted((path / "metadata").glob("*.npy"), key=_batch_order)
    if not files:
        raise DataError(f"{path / 'metadata'} has no .npy files", hint)
    for file in files:
        try:
            lines = read_bytes(file).decode().splitlines()
        except UnicodeDecodeError as problem:
            raise DataError(f"{file} is not text: {problem}", "the .npy files of LRA are plain text") from problem
        if not lines:
            raise DataError(f"{file} is empty", "is the copy complete?")
        for number, line in enumerate(lines, start=1):
            where = f"{file} line {number}"
            metadata = _parsed(line, where)
            image = path / metadata["subpath"] / metadata["filename"]
            if image.is_file() and not image.stat().st_size:
                _note_left_out(image, where)
                continue
            picture = _opened(image, where)
            size = size or len(picture)
            if picture.shape != (size, size):
                shown = "x".join(map(str, picture.shape))
                raise DataError(f"{image} is {shown}, not {size}x{size} ({where})", "is it from another set?")
            yield picture, metadata["label"], metadata


@cache
def _note_left_out(image: Path, where: str) -> None:
    """Once, though a source is read twice: to count its pictures, and to store them."""
    log.warning("left out %s, which has zero bytes (%s)", image, where)


def _parsed(line: str, where: str) -> dict[str, Any]:
    values = line.split()
    if len(values) != len(COLUMNS):
        hint = f"the columns are {' '.join(COLUMNS)}"
        raise DataError(f"{where}: {len(values)} columns instead of {len(COLUMNS)}", hint)
    named = dict(zip(COLUMNS, values, strict=True))
    metadata: dict[str, Any] = {name: named[name] for name in ("subpath", "filename")}
    for name in COLUMNS[2:]:
        try:
            number = float(named[name])
        except ValueError as problem:
            raise DataError(f"{where}: {name} is '{named[name]}'", "it is a number") from problem
        metadata[name] = int(number) if number.is_integer() and name != "continuity" else number
    if metadata["label"] not in (0, 1):
        raise DataError(f"{where}: the label is {named['label']}", "labels are 0 and 1")
    image = PurePosixPath(metadata["subpath"], metadata["filename"])
    if image.is_absolute() or ".." in image.parts:
        raise DataError(f"{where}: {image} is outside the folder", "only pictures below imgs/ are read")
    return metadata


def _opened(path: Path, where: str) -> np.ndarray:
    try:
        with Image.open(path, formats=["PNG"]) as image:
            if image.mode != "L":
                raise DataError(f"{path} is not an 8-bit gray picture but {image.mode} ({where})", "convert it to gray")
            if max(image.size) > _LARGEST_SIDE:  # before a pixel is unpacked: a few bytes can stand for gigabytes
                shown = "x".join(map(str, image.size))
                raise DataError(f"{path} is {shown} ({where})", f"pictures have up to {_LARGEST_SIDE} pixels a side")
            return np.array(image)
    except FileNotFoundError as problem:
        raise DataError(f"{path} is missing ({where})", "is the copy complete?") from problem
    except _UNREADABLE as problem:
        raise DataError(f"{path} cannot be read: {problem} ({where})", "is the copy complete?") from problem


def _batch_order(file: Path) -> tuple[int, str]:
    return (int(file.stem) if file.stem.isdecimal() else -1, file.stem)
