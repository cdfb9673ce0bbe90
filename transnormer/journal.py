"""The journal of a run: one JSON object per line for every logged step, evaluation and event.

    {"kind": "train", "step": 10, "loss": 5.1, "lr": 0.001, ...}                a logged step
    {"kind": "eval", "step": 10, "split": "valid", "metrics": {"loss": 5.0}}    an evaluation
    {"kind": "resumed", "text": "...", "time": 1767225600.0, ...}               an event: resumed, nonfinite, ...
    {"kind": "unreadable", "line": 3, "text": "..."}                            what a resumed run found damaged

Numbers that JSON lacks are the strings that float() reads. Each step appears once, also after interruptions, because a
resumed run drops the lines that came after its checkpoint; events stay.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from transnormer.errors import DataError
from transnormer.files import disk_errors, to_json, write_text

Line = dict[str, Any]

_MEANINGFUL = 1e6  # a perplexity: more than any vocabulary of words has
_TAIL = 16_384  # bytes in which the last line of a kind is looked for


class Journal:
    """The open journal of one writer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with disk_errors(path):
            self._file = path.open("a", encoding="utf-8")

    def append(self, line: Line) -> None:
        """Add a line; after this a kill of the process, though not of the machine, leaves it in the file."""
        text = to_json(line) + "\n"
        with disk_errors(self.path, len(text)):
            self._file.write(text)
            self._file.flush()

    def sync(self) -> None:
        """Wait until all lines are on the disk; done before a checkpoint that counts on them."""
        with disk_errors(self.path):
            os.fsync(self._file.fileno())

    def rewind(self, step: int, evaluated: int) -> None:
        """Drop train lines after `step`, eval lines after `evaluated`, and what a crash left half-written.

        A damaged line stays as a note of it: it must not keep a run from being resumed.
        """
        limits = {"train": step, "eval": evaluated}
        lines = [_note(line) if isinstance(line, Damaged) else line for line in _parse(self.path.read_bytes())]
        kept = [line for line in lines if line.get("step", 0) <= limits.get(line["kind"], float("inf"))]
        with disk_errors(self.path):
            self._file.close()
        write_text(self.path, "".join(to_json(line) + "\n" for line in kept))
        with disk_errors(self.path):
            self._file = self.path.open("a", encoding="utf-8")

    def close(self) -> None:
        """Close the file; the journal cannot be appended to any more."""
        with suppress(OSError):  # append writes every line out: one that is left did not fit, and append has said so
            self._file.close()


def read_journal(path: Path) -> list[Line]:
    """All lines of a journal, also of a run in progress; a DataError names a damaged one."""
    lines = []
    for line in _parse(path.read_bytes()):
        if isinstance(line, Damaged):
            raise DataError(f"{path}:{line.number} is {line.reason}")
        lines.append(line)
    return lines


def relative_deviation(norms: Sequence[float]) -> float:
    """Of logged gradient norms std / mean, the population's; NaN where one is not finite, or all are zero."""
    mean = fmean(norms)
    return pstdev(norms, mean) / mean if 0 < mean < math.inf else math.nan


def last_line(path: Path, kind: str) -> Line | None:
    """The last line of a kind, from the end of the file alone; None where there is none, or no journal yet."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL))
            tail = file.read()
    except FileNotFoundError:
        return None
    # The first line of a tail may be the end of one.
    found = [line for line in _parse(tail) if not isinstance(line, Damaged) and line["kind"] == kind]
    return found[-1] if found else None


def logged_tokens(path: Path, step: int) -> int:
    """What the last line of a step up to `step` says of tokens: 0 where there is no such line, or no journal."""
    lines = _parse(path.read_bytes()) if path.exists() else ()
    logged = [line for line in lines if not isinstance(line, Damaged) and line["kind"] == "train"]
    return next((line["tokens"] for line in reversed(logged) if line["step"] <= step), 0)


class Damaged(NamedTuple):
    """A line that is none of a journal's, and why."""

    number: int
    text: bytes
    reason: str


def _note(damaged: Damaged) -> Line:
    return {"kind": "unreadable", "line": damaged.number, "text": damaged.text.decode(errors="replace")}


def _parse(content: bytes) -> Iterator[Line | Damaged]:
    """The lines in order; a half-written last one, which a run in progress or a kill leaves, is left out."""
    *complete, last = content.split(b"\n")
    for number, text in enumerate(complete, start=1):
        yield _line(number, text)
    line = _line(len(complete) + 1, last)
    if not isinstance(line, Damaged):
        yield line


def worth_reading(metrics: dict[str, float]) -> dict[str, float]:
    """Without the perplexity of words that a model of bytes has hardly learned to spell: it says nothing yet."""
    return {name: value for name, value in metrics.items() if name != "word_perplexity" or value < _MEANINGFUL}


def _line(number: int, text: bytes) -> Line | Damaged:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Damaged(number, text, f"not JSON: {error}")
    if not _has_shape(line):
        return Damaged(number, text, f"not a line of a journal: {text.decode(errors='replace').strip()[:40]}")
    return line


def _has_shape(line: Any) -> bool:
    """Whether a line has what its kind needs: who reads a journal may count on it."""
    if not isinstance(line, dict) or not isinstance(line.get("kind"), str):
        return False
    if line["kind"] not in ("train", "eval"):
        return isinstance(line.get("step", 0), int)
    logged = {name: line.get(name) for name in ("loss", "grad_norm", "tokens")}
    numbers, layers = line.get("metrics") if line["kind"] == "eval" else logged, line.get("layer_grad_norms", {})
    if not isinstance(line.get("step"), int) or not isinstance(layers, dict):
        return False
    if not isinstance(numbers, dict) or "loss" not in numbers:
        return False
    return all(map(_is_number, [*numbers.values(), *layers.values()]))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or value in ("nan", "inf", "-inf")
