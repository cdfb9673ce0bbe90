"""The page of promises: every promise has a test that carries its mark, and a record is shown as it is."""

from __future__ import annotations

import json
import re
from pathlib import Path

from transnormer.report import promises

TESTS = Path(__file__).parents[1]


def write_record(results: Path, **found: dict[str, object]) -> None:
    environment = {"date": "2026-01-02", "commit": "0123456789", "hardware": {"cpu": "a CPU", "cores": 2}}
    record = {"promises": found, "environment": environment}
    (results / promises.RECORD).write_text(json.dumps(record))


def test_every_promise_has_a_test() -> None:
    marks = re.compile(r'mark\.reliability\("(R\d+)"\)')
    found = {mark for file in TESTS.rglob("test_*.py") for mark in marks.findall(file.read_text())}
    assert found == {promise.id for promise in promises.PROMISES}
    assert promises.OTHERS.keys() <= found


def test_a_promise_kept_in_part_or_not_at_all_is_said(tmp_path: Path) -> None:
    assert "There is no record yet" in promises.table(tmp_path)
    asked = {promise.id: promise.asked for promise in promises.PROMISES}
    tests = {"tests": ["tests/a.py::test_one", "tests/a.py::test_two", "tests/b.py::test_one"]}
    write_record(
        tmp_path,
        R1={"cases": asked["R1"], "failed": 0, **tests},
        R2={"cases": asked["R2"] - 1, "failed": 0, "tests": []},
        R3={"cases": 900, "failed": 2, "tests": []},
    )
    rows = {
        line.split("|")[1].strip(): line for line in promises.table(tmp_path).splitlines() if line.startswith("| R")
    }
    assert rows.keys() == asked.keys()
    assert rows["R1"].endswith(f"| {asked['R1']} | all |")
    assert "199, fewer than asked" in rows["R2"]
    assert rows["R3"].endswith("| 2 failed |")
    assert rows["R4"].endswith("| not run |")
    assert "*Shown by* `tests/a.py`, `tests/b.py`." in promises.details(tmp_path)
