"""GLUE's tab-separated files: one header, no quoting, a tab between columns and nowhere else.

Two files differ. CoLA's train.tsv and dev.tsv have no header, but always the columns source, label, mark, sentence. A
few lines of QQP's train.tsv lack columns or a question; every published loader leaves them out, and so does this one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from transnormer.data.glue.spec import Names, Spec
from transnormer.data.labelled_lines import lines
from transnormer.errors import DataError

log = logging.getLogger(__name__)

Row = tuple[tuple[str, ...], int]  # one text or two, and the label; 0 where it is not published
UNLABELLED = 0

_COLA_COLUMNS = ["source", "label", "mark", "sentence"]
_INDEX = ("index", "id")
_HINT = "in GLUE's files tabs separate columns, and quotes are characters like any other"
_MOST_BROKEN = 1000  # at most one line of so many is left out of QQP


def read_tsv(path: Path, spec: Spec, labelled: bool) -> list[Row]:
    """The examples of a file in its order; a DataError names the first line that is wrong.

    A file without labels is to be predicted: its lines are numbered, none may be missing, and a text may be empty.
    """
    body = decoded(path)
    first = next(body, None)
    if first is None:
        raise DataError(f"{path} is empty", "is the file complete?")
    columns = first[1]
    if spec.name == "glue/cola" and not set(columns) & set(spec.texts[0]):
        columns, body = _COLA_COLUMNS, chain([first], body)
    texts = [find_column(columns, names, f"{path} line 1") for names in spec.texts]
    label = find_column(columns, spec.label, f"{path} line 1") if labelled else None
    index = next((columns.index(name) for name in _INDEX if name in columns), None) if not labelled else None
    rows: list[Row] = []
    broken: list[DataError] = []
    for where, values in body:
        try:
            chosen = _texts(where, values, columns, texts, may_be_empty=not labelled)
        except DataError as fault:
            if spec.name != "glue/qqp" or not labelled:
                raise
            broken.append(fault)
            continue
        rows.append((chosen, UNLABELLED if label is None else _label(where, values[label], spec)))
        if index is not None and values[index] != str(len(rows) - 1):
            raise DataError(
                f"{where}: the index is '{values[index][:20]}', not {len(rows) - 1}",
                "predictions are submitted by these numbers: restore the published order",
            )
    if len(broken) * _MOST_BROKEN > len(rows):
        raise broken[0]
    if broken:
        log.warning("%s: %d broken lines are left out, as published loaders do: %s", path, len(broken), broken[0])
    if not rows:
        raise DataError(f"{path} has no examples", "is the file complete?")
    return rows


def _texts(where: str, values: list[str], columns: list[str], chosen: list[int], may_be_empty: bool) -> tuple[str, ...]:
    if len(values) != len(columns):
        raise DataError(f"{where}: {len(values)} columns instead of {len(columns)}", _HINT)
    texts = tuple(values[column].strip() for column in chosen)
    if not (all(texts) or may_be_empty):
        empty = columns[chosen[texts.index("")]]
        raise DataError(f"{where}: '{empty}' is empty", "remove the line, or put the text in")
    return texts


def _label(where: str, word: str, spec: Spec) -> int:
    if word not in spec.labels:
        raise DataError(f"{where}: the label is '{word[:20]}'", f"labels of {spec.name} are {', '.join(spec.labels)}")
    return spec.labels.index(word)


def decoded(path: Path) -> Iterator[tuple[str, list[str]]]:
    """('FILE line N', columns) of each line that has any; a byte order mark is no part of the first."""
    for where, line in lines(path):
        try:
            text = line.decode("utf-8-sig" if where.endswith(" line 1") else "utf-8")
        except UnicodeDecodeError as problem:
            raise DataError(
                f"{where}: byte {problem.start + 1} is not UTF-8", "convert the file: iconv -f latin1 -t utf-8"
            ) from None
        if text:
            yield where, text.split("\t")


def find_column(columns: Sequence[str], names: Names, where: str) -> int:
    """The number of the first of these names; a DataError says which columns there are."""
    for name in names:
        if name in columns:
            return columns.index(name)
    shown = ", ".join(column[:20] for column in columns[:12])
    raise DataError(f"{where}: no column '{names[0]}'", f"the columns are: {shown}")
