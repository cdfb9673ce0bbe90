"""The corpus 'text': your own files, and which part of them is held out."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from transnormer.data.corpora import Corpus, name_hash
from transnormer.data.excerpts import Excerpt, cut_at_line, whole_file
from transnormer.errors import ConfigError, DataError

HELD_OUT = 0.05  # share of the text that goes to valid, and again to test
SPLIT_NAMES = {"train": "train", "valid": "valid", "validation": "valid", "dev": "valid", "test": "test"}


def text_files(patterns: Sequence[str]) -> Corpus:
    """Your own text files, from names and patterns such as 'my/**/*.txt'.

    Files that are all called train, valid or test, whatever their endings, are those splits; train and valid must be
    among them. Otherwise, and where all have the same of these names, 5 % of the text goes to valid and 5 % to test:
    whole files, chosen by a hash of their names, or where there are too few files for that, the tail of each file.
    """
    files = _matching(patterns)
    if by_name := _splits_by_name(files):
        return Corpus("text", by_name, "by the files' names")
    if by_file := _hold_out_files(files):
        return Corpus("text", by_file, "whole files by sha256 of their names: about 5 % valid, 5 % test")
    return Corpus("text", _hold_out_tails(files), "of each file the first 90 % train, then 5 % valid, last 5 % test")


def paths_of(patterns: Sequence[str]) -> dict[Path, Path]:
    """What names and patterns stand for: by its absolute path each file once, as it was called."""
    found: dict[Path, Path] = {}
    for pattern in patterns:
        if glob.has_magic(pattern) and not Path(pattern).exists():
            found_paths = map(Path, glob.glob(pattern, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute one
            matches = [path for path in found_paths if not path.is_dir()]
            if not matches:
                raise DataError(f"no file matches '{pattern}'", "check the spelling; a pattern stands in quotes")
        else:
            matches = [Path(pattern)]
        found.update({path.resolve(): path for path in matches})
    return found


def _matching(patterns: Sequence[str]) -> list[Excerpt]:
    """The files in the order of their names; a file that two patterns match counts once."""
    found = paths_of(patterns)
    if not found:
        hint = "name a pattern: `data prepare` takes --text 'my/*.txt', `train` data.source='my/*.txt'"
        raise ConfigError("no text files were given", hint)
    # Names are relative to the files' common folder: a copy of that folder elsewhere gives the same store.
    common = os.path.commonpath([path.parent for path in found])
    named = sorted((path.relative_to(common).as_posix(), shown) for path, shown in found.items())
    for name, path in named:
        if not _is_utf8(name):
            raise DataError(f"the name of {str(path)!r} is not UTF-8", "rename the file")
    return [whole_file(path, name) for name, path in named]


def _is_utf8(name: str) -> bool:
    """Whether a manifest can hold it: Python reads other bytes of a file name as characters that cannot be written."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _splits_by_name(files: list[Excerpt]) -> dict[str, list[Excerpt]] | None:
    splits: dict[str, list[Excerpt]] = {"train": [], "valid": [], "test": []}
    for file in files:
        if file.path.stem not in SPLIT_NAMES:
            return None
        splits[SPLIT_NAMES[file.path.stem]].append(file)
    given = {name: chosen for name, chosen in splits.items() if chosen}
    if len(given) == 1:
        return None
    for needed in ("train", "valid"):
        # To hold out a part of all files would mix the splits: what is called test would be trained on.
        if needed not in given:
            beside = " and ".join(sorted({file.path.name for file in files}))
            raise DataError(f"there is no {needed} file beside {beside}", f"add {needed}.txt, or rename the files")
    return given


def _hold_out_files(files: list[Excerpt]) -> dict[str, list[Excerpt]] | None:
    """Files in hash order until valid and test have 5 % each, never above 10 %; None where that cannot be had."""
    wanted = HELD_OUT * sum(map(len, files))
    sizes = {"valid": 0, "test": 0}
    split_of: dict[str, str] = {}
    for file in sorted(files, key=lambda file: name_hash(file.name)):
        for split, size in sizes.items():
            if size < wanted and size + len(file) <= 2 * wanted:
                split_of[file.name] = split
                sizes[split] += len(file)
                break
    if min(sizes.values()) < wanted / 2:
        return None
    splits: dict[str, list[Excerpt]] = {"train": [], "valid": [], "test": []}
    for file in files:
        splits[split_of.get(file.name, "train")].append(file)
    return splits


def _hold_out_tails(files: list[Excerpt]) -> dict[str, list[Excerpt]]:
    splits: dict[str, list[Excerpt]] = {"train": [], "valid": [], "test": []}
    for file in files:
        first = cut_at_line(file, int(len(file) * (1 - 2 * HELD_OUT)))
        second = cut_at_line(file, max(first, int(len(file) * (1 - HELD_OUT))))
        for split, start, stop in (("train", 0, first), ("valid", first, second), ("test", second, len(file))):
            if stop > start:
                splits[split].append(replace(file, start=start, stop=stop))
    for split, chosen in splits.items():
        if not chosen:
            hint = "give more text, or files called train.txt, valid.txt and test.txt"
            raise DataError(f"{files[0].path} is too short to hold out a '{split}' split", hint)
    return splits
