"""`transnormer data prepare` on text: what it shows, and that its last line can be typed as it is."""

from __future__ import annotations

import io
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console

from transnormer.cli import progress
from transnormer.cli.progress import BytesProgress


@pytest.mark.parametrize("words", [200, 20_000])
def test_the_last_line_trains_a_model_that_fits_this_machine(
    cli: Callable, tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: int
) -> None:
    """Long and short texts: the windows must fit into every split."""
    monkeypatch.chdir(tmp_path)
    Path("my text").mkdir()
    Path("my text/book.txt").write_text("seven words stand in this short line\n" * (words // 7))
    done = cli("data", "prepare", "--text", "my text/*.txt", "--out", "my text/store, new")
    assert done.code == 0, done.err
    program, *arguments = shlex.split(done.out.splitlines()[-1].removeprefix("use it: "))
    assert program == "transnormer"
    assert "data.store=my text/store, new" in arguments
    assert ("model.preset=t2-lm" if torch.cuda.is_available() else "model.preset=t2-tiny") in arguments
    assert any(argument.startswith("data.sequence_length=") for argument in arguments) == (words == 200)
    others = [setting for setting in tiny if not setting.startswith("data.sequence_length")]
    assert cli(*arguments, *others).code == 0


def test_a_store_goes_through_pieces(cli: Callable, store: Path, tmp_path: Path) -> None:
    pieces = tmp_path / "in pieces"
    done = cli("data", "split", store, "--size", "10KB", "--out", pieces)
    assert done.code == 0, done.err
    assert cli("data", "verify", pieces).code == 0
    program, *arguments, out = shlex.split(done.out.splitlines()[-1].removeprefix("use them: "))
    assert (program, out) == ("transnormer", "store")
    assert cli(*arguments, tmp_path / out).code == 0
    assert (tmp_path / out / "manifest.json").read_bytes() == (store / "manifest.json").read_bytes()
    (pieces / "piece-00001").write_bytes(b"")
    for arguments in (("verify", pieces), ("join", pieces, "--out", tmp_path / "again")):
        done = cli("data", *arguments)
        assert done.code == 5
        assert "piece-00001 (0 bytes" in done.err


def test_a_log_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    log = io.StringIO()
    with BytesProgress(Console(file=log, soft_wrap=True)) as show:
        for seconds, done in ((0, 0), (4, 8e6), (10, 20e6), (11, 22e6), (20, 40e6)):
            now = 100.0 + seconds
            show("tokenizing", int(done), 60_000_000)
    assert log.getvalue().splitlines() == [
        "tokenizing: 20.0 of 60.0 MB, 2.00 MB/s, 20 s left",
        "tokenizing: 40.0 of 60.0 MB, 2.00 MB/s, 10 s left",
    ]


def test_work_that_was_done_before_does_not_count_as_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 1.0)
    log = io.StringIO()
    with BytesProgress(Console(file=log, soft_wrap=True)) as show:
        show("tokenizing", 50_000_000, 60_000_000)
        now = 5.0
        show("tokenizing", 55_000_000, 60_000_000)
    assert log.getvalue() == "tokenizing: 55.0 of 60.0 MB, 1.00 MB/s, 5 s left\n"


def test_a_terminal_gets_a_bar_with_speed_and_time_left() -> None:
    screen = io.StringIO()
    with BytesProgress(Console(file=screen, force_terminal=True, width=120)) as show:
        show("learning the tokenizer", 10, 10)
        for done in (0, 1_000_000, 2_000_000):
            show("tokenizing", done, 4_000_000)
            time.sleep(0.01)
    shown = screen.getvalue()
    assert "tokenizing" in shown
    assert "2.0/4.0 MB" in shown
    assert "MB/s" in shown or "GB/s" in shown
