"""NaN, a second writer, a full or read-only disk: the documented exit code, nothing lost, the same end."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from real_runs import Case, Fault, fingerprint
from safetensors.torch import load_file
from tiny_run import journal_lines

from transnormer.train import checkpoint

POISONS: dict[str, tuple[Fault, str]] = {
    "gradient": (("poison_batch", {"step": 8}), "gradient norm nan"),
    "NaN input": (("poison_input", {"step": 8, "value": "nan"}), "loss nan"),
    "infinite input": (("poison_input", {"step": 8, "value": "inf"}), "loss nan"),
}


@pytest.mark.reliability("R6")
@pytest.mark.parametrize("poison", POISONS)
def test_what_is_not_finite_stops_before_the_update_with_exit_4(case: Case, poison: str) -> None:
    fault, found = POISONS[poison]
    assert case.train(fault) == 4
    assert "non-finite at step 8" in case.forks.output
    [event] = journal_lines(case.run, "nonfinite")
    assert found in event["found"]
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


@pytest.mark.reliability("R7")
def test_a_disk_that_refuses_any_operation_of_a_save(
    case: Case, scratch: Path, at_full_figures: bool, count_cases: Callable[[int], None]
) -> None:
    listed = scratch / "operations"
    fault: Fault = ("list_file_operations", {"run": str(case.run), "step": 6, "into": str(listed)})
    assert case.train(fault) == 0, case.forks.output
    operations = listed.read_text().splitlines()
    # A folder that is there already need not be made once more, so a refusal to do so is no fault.
    needed = [
        number for number, each in enumerate(operations) if "mkdir" not in each or each not in operations[:number]
    ]
    numbers = needed if at_full_figures else needed[::8]
    count_cases(len(numbers))
    for number in numbers:
        one = Case(case.forks, case.recipe, case.undisturbed, scratch / f"run{number}")
        error = (errno.EIO, errno.ENOSPC)[number % 2]
        fault = ("refuse_file_operation", {"run": str(one.run), "step": 6, "number": number, "error": error})
        assert one.train(fault) == 6, (operations[number], one.forks.output)
        assert os.strerror(error) in one.forks.output
        checkpoint.verify(checkpoint.list_checkpoints(one.run / "checkpoints")[-1])
        assert one.resume() == 0, (operations[number], one.forks.output)
        one.require_equal_end()


@pytest.mark.reliability("R7")
def test_a_disk_that_takes_what_is_written_and_refuses_to_sync_it(
    case: Case, scratch: Path, at_full_figures: bool, count_cases: Callable[[int], None]
) -> None:
    """Each fsync of a whole run, until one is numbered that is no more made."""
    cases = 0
    for number in itertools.count(1, 1 if at_full_figures else 12):
        one = Case(case.forks, case.recipe, case.undisturbed, scratch / f"run{number}")
        error = (errno.EIO, errno.ENOSPC)[number % 2]
        code = one.train(("refuse_sync", {"number": number, "error": error}))
        if code == 0:
            break
        cases += 1
        assert code == 6, (number, one.forks.output)
        assert os.strerror(error) in one.forks.output
        if (one.run / "config.yaml").is_file():
            assert one.resume() == 0, (number, one.forks.output)
            one.require_equal_end()
    count_cases(cases)
    assert cases > 3


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
