"""Retrieval: pairs of papers as bytes, from the ACL Anthology Network files of the Long-Range Arena's release."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from transnormer.data.example_source import Example, Part, Source, as_one_split, find_folder
from transnormer.data.excerpts import sha256_of
from transnormer.data.labelled_lines import count_lines, lines, parse_label, require_text
from transnormer.data.lra.byte_text import to_ids
from transnormer.data.lra.spec import SPECS
from transnormer.errors import DataError

_NAMES = {"train": "train", "valid": "eval", "test": "test"}
FILES = {split: f"new_aan_pairs.{name}.tsv" for split, name in _NAMES.items()}
HINT = SPECS["lra/retrieval"].about_source
COLUMNS = "label, id of the first paper, id of the second, text of the first, text of the second"


def open_retrieval(source: str | Path) -> Source:
    """The three published files."""
    inside = ("tsv_data", "lra_release/tsv_data", "lra_release/lra_release/tsv_data")
    folder = find_folder(source, inside, FILES["train"], HINT)
    parts = {}
    for split, name in FILES.items():
        if not (folder / name).is_file():
            raise DataError(f"{folder / name} is missing", HINT)
        count = count_lines(folder / name)
        parts[split] = Part(count, _reader(folder / name), as_one_split(split, count))
    files = {name: sha256_of(folder / name) for name in FILES.values()}
    return Source(parts, "the source's own", {"sources": files})


def _reader(path: Path) -> Callable[[], Iterator[Example]]:
    return lambda: (_pair(where, line) for where, line in lines(path))


def _pair(where: str, line: bytes) -> Example:
    # Quotes are characters like any other in these files.
    columns = line.split(b"\t")
    if len(columns) != 5:
        raise DataError(f"{where}: {len(columns)} columns instead of 5", f"each line has {COLUMNS}")
    label = parse_label(columns[0].decode(errors="replace"), where)
    return tuple(to_ids(require_text(text, where)) for text in columns[3:]), label
