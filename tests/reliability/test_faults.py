"""NaN, a second writer, a full or read-only disk: the documented exit code, nothing lost, the same end."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_runs import Case, fingerprint
from safetensors.torch import load_file
from tiny_run import journal_lines

from transnormer.train import checkpoint


@pytest.mark.reliability("R6")
def test_nan_stops_before_the_update_with_exit_4(case: Case) -> None:
    assert case.train(("poison_batch", {"step": 8})) == 4
    assert "non-finite at step 8" in case.forks.output
    [event] = journal_lines(case.run, "nonfinite")
    assert "gradient norm nan" in event["found"]
    newest = checkpoint.list_checkpoints(case.run / "checkpoints")[-1]
    assert newest.name == "step-00000006"
    checkpoint.verify(newest)
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert all(tensor.isfinite().all() for tensor in load_file(newest / name).values())
    assert case.resume() == 0, case.forks.output
    case.require_equal_end()


@pytest.mark.reliability("R8")
def test_second_writer_is_refused_with_exit_2_and_changes_nothing(case: Case) -> None:
    first = case.forks.start("train", case.recipe, "--out", case.run, fault=("stop_at_step", {"step": 5}))
    case.forks.wait_for_stop(first)
    before = fingerprint(case.run)
    for arguments in (("resume", case.run), ("train", case.recipe, "--out", case.run)):
        assert case.forks.run(*arguments) == 2, "it must not wait for the first"
        assert f"process {first}" in case.forks.output
        assert fingerprint(case.run) == before
    os.kill(first, signal.SIGCONT)
    assert case.forks.wait(first) == 0
    case.require_equal_end()


@pytest.mark.reliability("R8")
def test_lock_of_a_killed_writer_is_taken_over_with_a_notice(stopped_case: Case) -> None:
    assert (stopped_case.run / "lock").read_text()
    assert stopped_case.resume() == 0, stopped_case.forks.output
    assert "took over the lock of process" in journal_lines(stopped_case.run, "takeover")[0]["text"]
    assert (stopped_case.run / "lock").read_text() == ""
    stopped_case.require_equal_end()


@pytest.mark.reliability("R8")
def test_training_into_a_used_folder_is_exit_2(case: Case) -> None:
    assert case.train() == 0
    before = fingerprint(case.run)
    assert case.train() == 2
    assert f"transnormer resume {case.run}" in case.forks.output
    assert fingerprint(case.run) == before


@pytest.mark.reliability("R7")
@pytest.mark.parametrize("limit", [20_000, 50_000], ids=["half the model", "half the optimizer"])
def test_disk_full_is_exit_6_and_the_last_checkpoint_stays(case: Case, limit: int) -> None:
    """By a limit on the size of files, which needs no privileges and fails in the middle of a write."""
    assert case.train(("disk_full_at_save", {"run": str(case.run), "step": 6, "limit": limit})) == 6
    assert "bytes needed" in case.forks.output
    assert "bytes free" in case.forks.output
    assert [path.name for path in (case.run / "checkpoints").iterdir()] == ["step-00000003"]
    checkpoint.verify(case.run / "checkpoints" / "step-00000003")
    assert case.resume() == 0, case.forks.output
    case.require_equal_end()


def mount(*arguments: str) -> bool:
    return subprocess.run(["mount", *arguments], capture_output=True).returncode == 0


@pytest.fixture
def small_disk(scratch: Path) -> Iterator[Path]:
    """A file system of 300 kB, enough for one checkpoint and half of the next."""
    disk = scratch / "disk"
    disk.mkdir()
    if not mount("-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)):
        pytest.skip("mounting a file system needs privileges")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.reliability("R7")
def test_a_file_system_that_is_full_then_read_only_then_large_enough(case: Case, small_disk: Path) -> None:
    case = Case(case.forks, case.recipe, case.undisturbed, small_disk / "run")
    assert case.train() == 6
    assert "No space left on device" in case.forks.output
    newest = checkpoint.list_checkpoints(case.run / "checkpoints")[-1]
    checkpoint.verify(newest)
    assert mount("-o", "remount,ro", str(small_disk))
    before = fingerprint(case.run)
    assert case.resume() == 6
    assert "Read-only file system" in case.forks.output
    assert fingerprint(case.run) == before
    assert mount("-o", "remount,rw,size=10m", str(small_disk))
    assert case.resume() == 0, case.forks.output
    case.require_equal_end()
