"""Pages are made of run folders alone, stand by themselves, and show the numbers that the files hold."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from transnormer.errors import ConfigError, DataError
from transnormer.report.page import run_page, write_page
from transnormer.report.run_record import read_run


def write_run(folder: Path, preset: str, finished: bool = True) -> Path:
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump({"model": {"preset": preset}}))
    lines = [{"kind": "train", "step": s, "loss": 5 / s, "tokens": 100 * s} for s in (1, 2, 4)]
    lines.append({"kind": "eval", "step": 4, "split": "valid", "metrics": {"loss": 1.5}})
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        result = {
            "preset": preset,
            "parameters": 123_456,
            "tokens_per_second": 789.4,
            "metrics": {"loss": 1.5, "bits_per_byte": 2.164},
            "protocol": "windows <of> 8",
            "device": "cpu",
            "precision": "float32",
            "hardware": {"cpu": "a processor"},
            "seed": 7,
            "commit": None,
            "versions": {"torch": "2.13"},
        }
        (folder / "result.json").write_text(json.dumps(result))
    return folder


def test_the_page_shows_the_numbers_and_loads_nothing(tmp_path):
    runs = [read_run(write_run(tmp_path / "a", "t2-tiny")), read_run(write_run(tmp_path / "b", "vanilla-tiny", False))]
    write_page(run_page(runs), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    for text in ("123,456", "789", "2.164", "t2-tiny", "running", "windows &lt;of&gt; 8", "not in a git checkout"):
        assert text in page
    assert "<svg" in page
    loaded = re.findall(r"""(?:src|href)=["'](?!#)[^"']*|@import|url\((?!#)[^)]*""", page)
    assert loaded == []


def test_the_same_runs_give_the_same_page(tmp_path):
    run = read_run(write_run(tmp_path / "a", "t2-tiny"))
    write_page(run_page([run]), tmp_path / "one.html")
    write_page(run_page([run]), tmp_path / "two.html")
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


def test_a_line_in_the_making_is_left_out_but_a_damaged_one_is_an_error(tmp_path):
    folder = write_run(tmp_path / "a", "t2-tiny")
    with (folder / "journal.jsonl").open("a") as journal:
        journal.write('{"kind": "train", "st')
    assert len(read_run(folder).train) == 3
    with (folder / "journal.jsonl").open("a") as journal:
        journal.write("\n")
    with pytest.raises(DataError, match=r"journal.jsonl:5 is not JSON"):
        read_run(folder)


def test_any_other_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="not a run folder"):
        read_run(tmp_path)
