"""Perplexity against context length: the table and the plot show what the files say."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from transnormer.errors import DataError
from transnormer.report.context_curves import contexts, draw_contexts


def write(path: Path, losses: dict[int, tuple[Any, Any]], in_bytes: bool = False, **fields: Any) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    rows = [{"context": c, "windows": {"loss": a}, "positions": {"loss": b}} for c, (a, b) in losses.items()]
    counts = {"tokens": 64, "words": 9, "bytes": 64 if in_bytes else 200, "estimated": True}
    scored = {"run": "runs/t2", "trained_at": 512, "split": "test", "data": {"store": "enwiki"}, "counts": counts}
    path.write_text(json.dumps({**scored, **fields, "contexts": rows}))
    return path


def test_a_table_of_all_files(tmp_path: Path):
    results = tmp_path / "results"
    assert contexts(results) is None
    log = math.log
    write(results / "contexts" / "t2-512.json", {128: (log(50), log(40)), 1024: (log(45), log(30.126))})
    bits = {128: (2 * log(2), log(2)), 256: (1.5 * log(2), log(2) / 4)}
    write(results / "contexts" / "bytes.json", bits, in_bytes=True, trained_at=2048)
    (results / "contexts" / "t2-512.svg").write_text("<svg/>")
    text = contexts(results)
    assert "| t2-512 (trained at 512; enwiki, test; perplexity) |" in text
    assert "bytes (trained at 2,048; enwiki, test; bits per byte)" in text
    assert "| 128 | 2.000 / 1.000 | 50.00 / 40.00 |" in text
    assert "| 256 | 1.500 / 0.250 | – |" in text
    assert "| 1,024 | – | 45.00 / 30.13 |" in text
    assert "![t2-512](../results/contexts/t2-512.svg)" in text
    assert "bytes.svg" not in text


def test_the_same_files_give_the_same_plot(tmp_path: Path):
    files = [write(tmp_path / f"{n}.json", {128: (4.0, n), 65536: (3.0, "Infinity")}, run=f"_run{n}$") for n in (1, 2)]
    drawn = draw_contexts(files)
    assert drawn == draw_contexts(files)
    assert drawn.startswith("<svg")
    for text in ("_run1$, trained at 512", "_run2$, trained at 512", "64k", "perplexity"):
        assert f">{text}</text>" in drawn
    assert ">bits per byte</text>" in draw_contexts([write(tmp_path / "b.json", {128: (1, 1)}, in_bytes=True)])


def test_perplexities_far_apart_have_a_log_axis(tmp_path: Path):
    drawn = draw_contexts([write(tmp_path / "a.json", {128: (math.log(60), math.log(54)), 1024: (math.log(1467), 7)})])
    assert all(f">{tick}</text>" in drawn for tick in ("50", "100", "1,000", "2,000"))


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"contexts": [{}]}', '{"contexts": 3}'])
def test_a_file_that_holds_no_curve(tmp_path: Path, content: str):
    (tmp_path / "other.json").write_text(content)
    with pytest.raises(DataError, match=r"other.json holds no context curve"):
        draw_contexts([tmp_path / "other.json"])
