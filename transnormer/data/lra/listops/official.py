"""ListOps as the Long-Range Arena stores it: basic_{train,val,test}.tsv with binary trees in parentheses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from transnormer.data.labelled_lines import lines
from transnormer.data.lra.listops.language import CLOSE, NUM_CLASSES, PAD, TOKENS, fault
from transnormer.data.lra.spec import spec_of
from transnormer.errors import DataError

HEADER = "Source\tTarget"
MAX_TOKENS = spec_of("lra/listops").max_length
IDS = {token: number for number, token in enumerate(TOKENS) if number != PAD} | {"X": CLOSE}


def read_official_tsv(path: str | Path) -> Iterator[tuple[np.ndarray, int]]:
    """(tokens, label) of each line; a DataError names the file and the line that is not one."""
    path = Path(path)
    rows = lines(path)
    _, header = next(rows, ("", b""))
    if header != HEADER.encode():
        shown = header[:40].decode(errors="replace")
        hint = "take basic_train.tsv, basic_val.tsv or basic_test.tsv of the LRA release"
        raise DataError(f"{path} line 1: the header is '{shown}', not 'Source<TAB>Target'", hint)
    where = None
    for where, line in rows:
        yield _parsed(line, where)
    if where is None:
        raise DataError(f"{path} has a header but no examples", "is the file complete?")


def _parsed(line: bytes, where: str) -> tuple[np.ndarray, int]:
    columns = line.split(b"\t")
    if len(columns) != 2:
        hint = "each line is an expression, one tab, and its value"
        raise DataError(f"{where}: {len(columns)} columns instead of 2", hint)
    try:
        source, label = columns[0].decode("ascii"), int(columns[1])
    except ValueError as problem:  # also of undecodable bytes
        raise DataError(f"{where}: {problem}", "the expression is ASCII, its value a digit") from problem
    if not 0 <= label < NUM_CLASSES:
        raise DataError(f"{where}: the label is {label}", f"labels are 0 .. {NUM_CLASSES - 1}")
    words = source.replace("(", " ").replace(")", " ").split()
    if len(words) > MAX_TOKENS:
        hint = f"expressions have up to {MAX_TOKENS:,} tokens; remove the line"
        raise DataError(f"{where}: an expression of {len(words):,} tokens", hint)
    try:
        tokens = np.fromiter((IDS[word] for word in words), dtype=np.uint8, count=len(words))
    except KeyError as problem:
        hint = f"ListOps has the tokens {' '.join(TOKENS[1:])}"
        raise DataError(f"{where}: unknown token {problem}", hint) from problem
    if wrong := fault(tokens):
        raise DataError(f"{where}: {wrong}", "is the line complete?")
    return tokens, label
