"""The journal tells the truth after any interruption: every line is JSON, every step appears once."""

from __future__ import annotations

import json
import math
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transnormer.errors import DataError, DiskError
from transnormer.journal import Journal, last_line, read_journal, relative_deviation


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def logged(step: int) -> dict[str, object]:
    return {"kind": "train", "step": step, "loss": 1.0 / step, "grad_norm": 1.0, "tokens": 10 * step}


def fill(path: Path) -> Journal:
    journal = Journal(path)
    for step in range(1, 7):
        journal.append(logged(step))
        if step % 2 == 0:
            journal.append({"kind": "eval", "step": step, "metrics": {"loss": 1.0}})
    journal.append({"kind": "nonfinite", "step": 7})
    return journal


def steps(path: Path, kind: str) -> list[int]:
    return [line["step"] for line in read_journal(path) if line["kind"] == kind]


@pytest.mark.reliability("R18")
def test_rewind_drops_later_steps_and_keeps_events(path: Path) -> None:
    journal = fill(path)
    journal.rewind(step=4, evaluated=2)
    assert steps(path, "train") == [1, 2, 3, 4]
    assert steps(path, "eval") == [2]
    assert steps(path, "nonfinite") == [7]
    journal.append(logged(5))
    assert steps(path, "train") == [1, 2, 3, 4, 5]


@pytest.mark.reliability("R18")
@pytest.mark.parametrize("cut", range(1, 20))
def test_half_written_last_line_is_repaired(path: Path, cut: int) -> None:
    fill(path).close()
    content = path.read_bytes()
    path.write_bytes(content[:-cut])
    assert read_journal(path)  # a run in progress can be read, too
    journal = Journal(path)
    journal.rewind(step=6, evaluated=6)
    journal.append(logged(7))
    assert steps(path, "train") == [1, 2, 3, 4, 5, 6, 7]
    for line in path.read_text().splitlines():
        json.loads(line)


@pytest.mark.reliability("R18")
def test_a_line_broken_in_the_middle_becomes_a_note(path: Path) -> None:
    fill(path).close()
    lines = path.read_bytes().splitlines()
    lines[1] = lines[1][:5] + b"\xff"
    path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(DataError, match=r"journal.jsonl:2 is not JSON"):
        read_journal(path)
    Journal(path).rewind(step=6, evaluated=6)
    notes = [json.loads(line) for line in path.read_text().splitlines() if "unreadable" in line]
    assert [note["line"] for note in notes] == [2]
    assert steps(path, "train") == [1, 3, 4, 5, 6]


@pytest.mark.reliability("R18")
def test_non_finite_numbers_are_strict_json_that_float_reads(path: Path) -> None:
    journal = Journal(path)
    journal.append({"kind": "eval", "step": 1, "metrics": {"perplexity": float("inf"), "loss": float("nan")}})
    line = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert float(line["metrics"]["perplexity"]) == float("inf")
    assert line["metrics"]["loss"] == "nan"


def test_a_full_disk_is_said_once() -> None:
    """The line that did not fit is still in the buffer of the file, and closing it tries to write it again."""
    with pytest.raises(DiskError, match="No space left"), closing(Journal(Path("/dev/full"))) as journal:
        journal.append(logged(1))


def test_a_full_disk_stops_a_rewind(path: Path) -> None:
    journal = fill(path)
    journal.close()
    with Path("/dev/full").open("a") as journal._file:
        journal._file.write("what cannot be written\n")
        with pytest.raises(DiskError, match="No space left"):
            journal.rewind(step=4, evaluated=4)
    assert steps(path, "train") == [1, 2, 3, 4, 5, 6]


def test_the_last_line_of_a_kind_is_found_from_the_end(path: Path) -> None:
    assert last_line(path, "train") is None
    journal = fill(path)
    for step in range(7, 2_000):
        journal.append(logged(step))
    found = last_line(path, "train")
    assert found is not None
    assert found["step"] == 1_999
    assert last_line(path, "nonfinite") is None, "it lies further back than is looked"
    with path.open("a") as file:
        file.write('{"kind": "train", "st')
    assert last_line(path, "train") == found


@given(st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=50), st.floats(1e-3, 1e3))
def test_relative_deviation_is_numpys_and_has_no_unit(norms: list[float], factor: float) -> None:
    found = relative_deviation(norms)
    assert found == pytest.approx(np.std(norms) / np.mean(norms), rel=1e-6, abs=1e-9)
    assert relative_deviation([factor * norm for norm in norms]) == pytest.approx(found, rel=1e-6, abs=1e-9)


def test_relative_deviation_of_what_has_none() -> None:
    assert relative_deviation([2.0]) == relative_deviation([2.0, 2.0]) == 0
    for norms in ([0.0, 0.0], [1.0, math.inf], [math.inf, math.inf], [math.nan, 1.0]):
        assert math.isnan(relative_deviation(norms))
