"""Pages are made of run folders alone, stand by themselves, and show the numbers that the files hold."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import yaml
from run_case import write_run

from transnormer.errors import ConfigError, DataError
from transnormer.report import run_page as of_runs
from transnormer.report.page import Table, write_page
from transnormer.report.run_page import run_page
from transnormer.report.run_record import read_run, read_runs


def test_a_model_that_came_with_weights_is_called_by_them(tmp_path):
    folder = write_run(tmp_path / "a", "t2-tiny")
    (folder / "config.yaml").write_text(yaml.safe_dump({"model": {"preset": None, "init": "/models/exported"}}))
    write_page(run_page([read_run(folder)]), tmp_path / "page.html")
    assert "that of /models/exported" in (tmp_path / "page.html").read_text()


def test_the_page_shows_the_numbers_and_loads_nothing(tmp_path):
    runs = [read_run(write_run(tmp_path / "a", "t2-tiny")), read_run(write_run(tmp_path / "b", "vanilla-tiny", False))]
    write_page(run_page(runs), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    for text in ("123,456", "789", "2.164", "t2-tiny", "not finished", "windows &lt;of&gt; 8", "not in a git checkout"):
        assert text in page
    assert "<svg" in page
    loaded = re.findall(r"""(?:src|href)=["'](?!#)[^"']*|@import|url\((?!#)[^)]*""", page)
    assert loaded == []


def table(runs: list[Path], title: str) -> Table | None:
    return {section.title: section.table for section in run_page(read_runs(runs)).sections}.get(title)


def test_keys_that_differ_stand_beside_each_other(tmp_path):
    same, options = {"batch_size": 4}, {"diag": {"block_size": 32}}
    runs = [
        write_run(tmp_path / "a", "t2-tiny", train={"steps": 5, **same}, optim={"lr": 1e-4, "betas": [0.9, 0.98]}),
        write_run(tmp_path / "b", "t1-tiny", train={"steps": 9, **same}, optim={"lr": 1e-4, "betas": [0.9, 0.98]}),
        write_run(tmp_path / "c", "t2-tiny", finished=False, train={"steps": 5, **same}, mixer_options=options),
    ]
    found = table(runs, "Keys that differ")
    assert found is not None
    assert found.columns == ["key", "a", "b", "c"]
    assert found.rows == [
        ["model.preset", "t2-tiny", "t1-tiny", "t2-tiny"],
        ["optim.betas", "[0.9, 0.98]", "[0.9, 0.98]", ""],
        ["optim.lr", "0.0001", "0.0001", ""],
        ["train.steps", "5", "9", "5"],
        ["mixer_options.diag.block_size", "", "", "32"],
    ]
    assert table(runs[:1], "Keys that differ") is None


def test_equal_runs_have_no_keys_that_differ(tmp_path):
    runs = [write_run(tmp_path / name, "t2-tiny", seed=1) for name in ("a", "b")]
    assert table(runs, "Keys that differ") is None


def test_the_test_split_stands_beside_the_validation_split(tmp_path):
    runs = [
        write_run(tmp_path / "a", "t2-tiny", test={"loss": 1.25, "accuracy": 0.4075, "word_perplexity": 2.385e11}),
        write_run(tmp_path / "b", "t2-tiny", test={"loss": "nan", "accuracy": 0.1}),
        write_run(tmp_path / "c", "t2-tiny"),
        write_run(tmp_path / "d", "t2-tiny", finished=False),
    ]
    found = table(runs, "Outcome")
    assert found is not None
    assert list(found.columns)[4:] == ["valid loss", "valid bits per byte", "test loss", "test accuracy"]
    assert [list(row)[4:] for row in found.rows] == [
        ["1.5", "2.164", "1.25", "0.4075"],
        ["1.5", "2.164", "nan", "0.1"],
        ["1.5", "2.164", "", ""],
        ["", "", "", ""],
    ]


def test_runs_of_the_same_name_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [Path("lra/text-t2-42"), Path("lra-tuned/text-t2-42"), Path("lra/text-t1-42")]
    for folder in folders:
        write_run(folder, "t2-tiny")
    assert [run.name for run in read_runs(folders)] == ["lra/text-t2-42", "lra-tuned/text-t2-42", "text-t1-42"]


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


@pytest.mark.parametrize("line", [b"3\n", b'{"step": 1}\n', b"\xff\xfe\n"])
def test_what_is_no_line_of_a_journal_is_named(tmp_path, line):
    folder = write_run(tmp_path / "a", "t2-tiny")
    with (folder / "journal.jsonl").open("ab") as journal:
        journal.write(line)
    with pytest.raises(DataError, match=r"journal.jsonl:5 is not"):
        read_run(folder)


def test_every_evaluation_is_drawn_and_words_are_gaps(tmp_path, monkeypatch):
    """Of steps that were not logged, too; nan and inf are words in a journal."""
    folder = write_run(tmp_path / "a", "t2-tiny", finished=False)
    with (folder / "journal.jsonl").open("a") as journal:
        for step, loss in ((3, 1.25), (5, "nan"), (6, "inf")):
            journal.write(json.dumps({"kind": "eval", "step": step, "metrics": {"loss": loss}}) + "\n")
    drawn = []
    monkeypatch.setattr(of_runs, "draw_curves", lambda curves, **_: drawn.extend(curves))
    of_runs.draw_losses([read_run(folder)])
    (dots,) = [curve for curve in drawn if curve.dots]
    assert list(dots.x) == [400, 300, 400, 400]
    assert dots.y == pytest.approx([1.5, 1.25, math.nan, math.nan], nan_ok=True)


def with_data(folder: Path, digest: str) -> Path:
    (folder / "data.json").write_text(json.dumps({"store": f"/stores/{digest}-store", "digest": digest * 16}))
    return folder


def test_losses_of_different_data_or_tasks_do_not_share_an_axis(tmp_path):
    """A store's digest is of its tokens, so of its tokenizer too."""
    a, b, c, d = (write_run(tmp_path / name, "t2-tiny", task="causal_lm") for name in "abcd")
    with_data(a, "x"), with_data(b, "y"), with_data(c, "x")
    masked = with_data(write_run(tmp_path / "e", "t2-tiny", task="masked_lm"), "x")
    charts = of_runs.loss_charts(read_runs([a, b, c, d, masked]))
    shown = [[name for name in "abcde" if f">{name}</text>" in chart.svg] for chart in charts]
    assert shown == [["a", "c"], ["b"], ["d"], ["e"]]
    assert charts[0].caption == "causal_lm on x-store, digest xxxxxxxxxxxx: a, c."
    write_page(run_page(read_runs([a, b])), tmp_path / "page.html")
    assert "each has a chart of its own" in (tmp_path / "page.html").read_text()
    assert len(of_runs.loss_charts(read_runs([a, c]))) == 1


def test_any_other_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="not a run folder"):
        read_run(tmp_path)
