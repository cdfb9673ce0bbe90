"""Symbolic links where a run writes: what they point to stays as it is, and the link is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_runs import Case, fingerprint

from transnormer.bench.tuning import lock_file
from transnormer.errors import DiskError
from transnormer.files import lock, resumable_folder, write_text


@pytest.fixture
def victim(scratch: Path) -> Path:
    path = scratch / "victim"
    path.write_text("precious")
    return path


@pytest.mark.reliability("R9")
@pytest.mark.parametrize("name", ["lock", "journal.jsonl"])
def test_a_file_of_a_run_that_is_a_link_stops_it(stopped_case: Case, victim: Path, name: str) -> None:
    (stopped_case.run / name).unlink()
    (stopped_case.run / name).symlink_to(victim)
    assert stopped_case.resume() == 6
    assert f"{name} is a symbolic link" in stopped_case.forks.output
    assert victim.read_text() == "precious"


@pytest.mark.reliability("R9")
@pytest.mark.parametrize("name", ["checkpoints", "quarantine", "final", "tensorboard"])
def test_a_folder_of_a_run_that_is_a_link_stops_it(stopped_case: Case, scratch: Path, name: str) -> None:
    elsewhere = scratch / "elsewhere"
    folder = stopped_case.run / name
    if folder.exists():
        folder.rename(elsewhere)
    elsewhere.mkdir(exist_ok=True)
    folder.symlink_to(elsewhere)
    before = fingerprint(elsewhere)
    assert stopped_case.resume() == 6
    assert f"{name} is a symbolic link" in stopped_case.forks.output
    assert fingerprint(elsewhere) == before


def test_a_temporary_name_that_is_a_link_is_not_written_through(scratch: Path, victim: Path) -> None:
    (scratch / ".tmp-eval-final-valid.json").symlink_to(victim)
    write_text(scratch / "eval-final-valid.json", "scores")
    assert victim.read_text() == "precious"
    assert (scratch / "eval-final-valid.json").read_text() == "scores"
    assert not (scratch / "eval-final-valid.json").is_symlink()


@pytest.mark.reliability("R9")
def test_a_lock_is_not_taken_through_a_link(scratch: Path, victim: Path) -> None:
    (scratch / "lock").symlink_to(victim)
    with pytest.raises(DiskError, match="symbolic link"), lock(scratch / "lock"):
        pass
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("inside", [False, True])
def test_an_unfinished_folder_is_not_filled_through_a_link(scratch: Path, victim: Path, inside: bool) -> None:
    unfinished = scratch / ".store.unfinished"
    if inside:
        unfinished.mkdir()
        (unfinished / "train-00000.bin").symlink_to(victim)
    else:
        (scratch / "elsewhere").mkdir()
        unfinished.symlink_to(scratch / "elsewhere")
    with pytest.raises(DiskError, match="symbolic link"), resumable_folder(scratch / "store"):
        pytest.fail("nobody may write here")
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("there", [False, True])
def test_a_new_folder_is_not_made_through_a_link(case: Case, scratch: Path, there: bool) -> None:
    """A run may be written to an empty folder that a link leads to, but nothing replaces a link."""
    elsewhere, out = scratch / "elsewhere", scratch / "out"
    out.symlink_to(elsewhere)
    if there:
        elsewhere.mkdir()
    assert case.forks.run("export", case.undisturbed, "--out", out) == 2, case.forks.output
    assert "is a symbolic link" in case.forks.output
    assert case.forks.run("train", case.recipe, "--out", out) == (0 if there else 2), case.forks.output
    assert there or "is a symbolic link to nothing" in case.forks.output


def test_the_lock_of_tuning_lies_in_the_users_own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRANSNORMER_CACHE", str(tmp_path / "cache"))
    assert lock_file().parent == tmp_path / "cache"
    assert lock_file().parent.is_dir()
