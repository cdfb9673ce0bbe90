"""`transnormer report`: a page of runs, by their folders alone, and a site of results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_runs_need_no_word_before_them(cli: Callable, finished_run: Path, tmp_path: Path) -> None:
    pages = []
    for words in ([finished_run], ["runs", finished_run], ["--out", tmp_path / "page.html", finished_run]):
        done = cli("report", *words, *([] if "--out" in words else ["--out", tmp_path / "page.html"]))
        assert (done.code, done.err) == (0, "")
        pages.append((tmp_path / "page.html").read_text())
    assert "<svg" in pages[0]
    assert pages[1:] == pages[:1] * 2


def test_a_page_without_the_ending_of_one_is_refused(cli: Callable, finished_run: Path, tmp_path: Path) -> None:
    done = cli("report", finished_run, "--out", tmp_path / "rep")
    assert done.code == 2
    assert f"give --out {tmp_path / 'rep'}.html" in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_site_of_results_and_runs(cli: Callable, finished_run: Path, tmp_path: Path) -> None:
    done = cli("report", "site", "--results", ROOT / "results", "--runs", finished_run, "--out", tmp_path / "site")
    assert (done.code, done.err) == (0, "")
    assert "index.html" in done.out
    assert finished_run.name in (tmp_path / "site" / "runs.html").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--results", "nowhere", "--out", "site"], "nowhere is not a folder"),
        (["--results", ".", "--out", "site"], ". has no records"),
        (["--out", "a/b"], "there is no folder a"),
        (["--runs", "nowhere", "--out", "site"], "nowhere does not exist"),
        ([], "Missing option '--out'"),
    ],
)
def test_bad_input_gets_a_line(
    cli: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = cli("report", "site", *words)
    assert done.code == 2
    assert said in done.err
    assert list(tmp_path.iterdir()) == []
