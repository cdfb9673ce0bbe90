"""ListOps as the Long-Range Arena stores it: basic_{train,val,test}.tsv with binary trees in parentheses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from transnormer.data.labelled_lines import lines
from transnormer.data.lra.listops.language import CLOSE, MIN, NUM_CLASSES, PAD, SM, TOKENS, fault
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


def write_official_tsv(path: str | Path, examples: Iterable[tuple[np.ndarray, int]]) -> None:
    """Writes a file that `read_official_tsv` and the LRA's own pipelines read."""
    with Path(path).open("w", encoding="ascii", newline="") as file:
        file.write(f"{HEADER}\r\n")  # line ends as the official generator has them
        for tokens, label in examples:
            file.write(f"{_nested(tokens)}\t{label}\r\n")


def _nested(tokens: np.ndarray) -> str:
    """Left-nested pairs: [MAX 4 3 ] becomes ( ( ( [MAX 4 ) 3 ) ] )."""
    if wrong := fault(tokens := tokens[tokens != PAD]):
        raise DataError(wrong, "only whole expressions can be written")
    out: list[str] = []
    starts: list[tuple[int, int]] = []  # of the open operators: index in `out` to open parentheses at, arguments so far
    for token in tokens.tolist():
        if MIN <= token <= SM:
            starts.append((len(out), 0))
            out += ["", TOKENS[token]]
            continue
        out.append(TOKENS[token])
        if token == CLOSE:
            index, arguments = starts.pop()
            out[index] = "( " * (arguments + 1)
            out.append(")")
        if starts:
            index, arguments = starts[-1]
            starts[-1] = (index, arguments + 1)
            out.append(")")
    return " ".join(out).replace("  ", " ").strip()
