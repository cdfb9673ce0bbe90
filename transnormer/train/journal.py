"""The journal: one JSON object per line for every logged step, evaluation and event of a run.

Kinds `train` and `eval` describe steps; each step appears once, also after interruptions, because a resumed run drops
the lines that came after its checkpoint. All other kinds are events (resumed, nonfinite, quarantined, ...) and stay.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from transnormer.train.durable import disk_errors, to_json, write_text

Line = dict[str, Any]


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
        """Drop train lines after `step`, eval lines after `evaluated`, and what a crash left half-written."""
        limits = {"train": step, "eval": evaluated}
        kept = [line for line in _repaired(self.path) if line.get("step", 0) <= limits.get(line["kind"], float("inf"))]
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
    """All whole lines of a journal, also of a run in progress."""
    return [line for line in _repaired(path) if line["kind"] != "unreadable"]


def _repaired(path: Path) -> list[Line]:
    """The lines as objects: a half-written last one is left out, one broken in the middle becomes a note of it."""
    texts = path.read_bytes().split(b"\n")
    lines = []
    for number, text in enumerate(texts, start=1):
        try:
            line = json.loads(text)
            if not isinstance(line, dict) or "kind" not in line:
                raise ValueError("not a line of a journal")
            lines.append(line)
        except ValueError:
            if number < len(texts):
                lines.append({"kind": "unreadable", "line": number, "text": text.decode(errors="replace")})
    return lines
