"""Text: IMDB reviews as bytes, from the aclImdb folders or their archive, or from jsonl or tsv files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from transnormer.data.example_source import Example, Part, Source, as_one_split, hash_of_files, held_out, read_bytes
from transnormer.data.excerpts import sha256_of
from transnormer.data.labelled_lines import lines, parse_label, require_text
from transnormer.data.lra.archives import is_archive, read_members
from transnormer.data.lra.byte_text import MAX_BYTES, to_ids
from transnormer.data.lra.spec import SPECS
from transnormer.errors import DataError

Review = tuple[bytes, int]

HINT = SPECS["lra/text"].about_source
_REVIEW = re.compile(r"(?:.*/)?(train|test)/(neg|pos)/[^/]+\.txt")
PARTS = ("train", "test")


def open_text(source: str | Path, seed: int) -> Source:
    """The reviews of a source; a tenth of the training set becomes the validation set."""
    path = Path(source)
    if not path.exists():
        raise DataError(f"{path} does not exist", HINT)
    reviews, files = _read(path)
    for name in PARTS:
        if not reviews[name]:
            raise DataError(f"{path} has no {name} reviews", HINT)
    train = Part(len(reviews["train"]), _reader(reviews["train"]), held_out(len(reviews["train"]), seed, "valid"))
    test = Part(len(reviews["test"]), _reader(reviews["test"]), as_one_split("test", len(reviews["test"])))
    rule = f"valid is a tenth of the source's train set, drawn with seed {seed}; test is the source's"
    return Source({"train": train, "test": test}, rule, {"sources": files})


def _reader(reviews: list[Review]) -> Callable[[], Iterator[Example]]:
    return lambda: (((to_ids(text),), label) for text, label in reviews)


def _read(path: Path) -> tuple[dict[str, list[Review]], dict[str, str]]:
    """The reviews of each part, cut to what is used of them, and the hashes of the files they are from."""
    if is_archive(path):
        members = read_members(path, lambda name: _REVIEW.fullmatch(name) is not None)
        return _sorted_into_parts(members, path), {path.name: sha256_of(path)}
    for suffix, read in ((".jsonl", _json_lines), (".tsv", _tab_separated)):
        files = {name: path / f"{name}{suffix}" for name in PARTS}
        if all(file.is_file() for file in files.values()):
            reviews = {name: list(read(file)) for name, file in files.items()}
            return reviews, {file.name: sha256_of(file) for file in files.values()}
    root = path / "aclImdb" if (path / "aclImdb").is_dir() else path
    found = sorted(
        (file.relative_to(root).as_posix(), file) for name in PARTS for file in root.glob(f"{name}/???/*.txt")
    )
    found = [(name, file) for name, file in found if _REVIEW.fullmatch(name)]
    if not found:
        raise DataError(f"{path} holds no reviews", HINT)
    reviews = _sorted_into_parts(((name, read_bytes(file)) for name, file in found), root)
    return reviews, {f"{name}/{{neg,pos}}/*.txt": _hash_of_part(found, name) for name in PARTS}


def _hash_of_part(files: list[tuple[str, Path]], part: str) -> str:
    return hash_of_files((name, file) for name, file in files if name.startswith(f"{part}/"))


def _sorted_into_parts(files: Iterator[tuple[str, bytes]], root: Path) -> dict[str, list[Review]]:
    reviews: dict[str, list[Review]] = {name: [] for name in PARTS}
    for name, text in files:
        match = _REVIEW.fullmatch(name)
        assert match is not None
        require_text(text, f"{root}/{name}")
        reviews[match[1]].append((text[:MAX_BYTES], int(match[2] == "pos")))
    return reviews


def _json_lines(path: Path) -> Iterator[Review]:
    """Objects with `text` and `label`; bytes that are not UTF-8 stay as they are."""
    for where, line in lines(path):
        if not line:
            continue
        try:
            row = json.loads(line.decode("utf-8", errors="surrogateescape"))
        except (ValueError, RecursionError) as problem:
            raise DataError(f"{where}: not JSON: {problem}", "each line is one JSON object") from problem
        text, label = (row.get("text"), row.get("label")) if isinstance(row, dict) else (None, None)
        hint = 'each line is an object such as {"text": "A fine film.", "label": 1}'
        if not isinstance(text, str) or label is None:
            raise DataError(f"{where}: no 'text' or no 'label'", hint)
        if not isinstance(label, int | float):
            raise DataError(f"{where}: the label {json.dumps(label)[:20]} is not a number", hint)
        try:
            encoded = text.encode("utf-8", errors="surrogateescape")
        except UnicodeEncodeError as problem:
            raise DataError(f"{where}: half a surrogate pair at character {problem.start}", "repair the line") from None
        yield require_text(encoded, where)[:MAX_BYTES], parse_label(str(label), where)


def _tab_separated(path: Path) -> Iterator[Review]:
    """Two columns, named in the first line as `label` and `text` in either order; without names the label is first."""
    label_column = 0
    for number, (where, line) in enumerate(lines(path)):
        columns = line.split(b"\t")
        if number == 0 and sorted(columns) == [b"label", b"text"]:
            label_column = columns.index(b"label")
            continue
        if len(columns) != 2:
            raise DataError(f"{where}: {len(columns)} columns instead of 2", "each line is a label, a tab, and a text")
        label = parse_label(columns[label_column].decode(errors="replace"), where)
        yield require_text(columns[1 - label_column], where)[:MAX_BYTES], label
