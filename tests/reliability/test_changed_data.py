"""A store that somebody writes to while a run reads it: no other result, no crash without a word."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from real_runs import Case
from tiny_run import tiny_config, tiny_store

from transnormer.config.load import dump_config
from transnormer.train.checkpoint import list_checkpoints


def edit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[:64] = content[64:128]
    path.write_bytes(content)


def truncate(path: Path) -> None:
    os.truncate(path, 2)


CHANGES: dict[str, Callable[[Path], None]] = {"edited": edit, "truncated": truncate, "deleted": Path.unlink}


@pytest.mark.reliability("R10")
@pytest.mark.parametrize("change", CHANGES)
def test_data_that_change_end_the_run_before_they_are_saved(case: Case, scratch: Path, change: str) -> None:
    store = tiny_store(scratch)
    recipe = scratch / "own.yaml"
    recipe.write_text(dump_config(tiny_config(store, train__keep_last=1)))
    shutil.copytree(store, scratch / "backup")
    pid = case.forks.start("train", recipe, "--out", case.run, fault=("stop_at_step", {"step": 8}))
    case.forks.wait_for_stop(pid)
    CHANGES[change](store / "train-00000.bin")
    os.kill(pid, signal.SIGCONT)
    assert case.forks.wait(pid) == 5
    assert "train-00000.bin" in case.forks.output
    assert "Traceback" not in case.forks.output
    assert list_checkpoints(case.run / "checkpoints")[-1].name == "step-00000006"
    shutil.rmtree(store)
    shutil.copytree(scratch / "backup", store)
    assert case.resume() == 0, case.forks.output
    case.require_equal_end()
