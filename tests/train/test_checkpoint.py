"""A checkpoint is whole or absent, and no change of any file goes unnoticed."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from transnormer.errors import CheckpointError, DiskError
from transnormer.train import checkpoint
from transnormer.train.checkpoint import BrokenCheckpoint

FILES = {"model.safetensors": bytes(range(256)) * 2, "state.json": b'{"step": 1}', "nested/vocab.txt": b"a\nb\n"}


def write_files(folder: Path) -> None:
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def make(checkpoints: Path, step: int) -> Path:
    target = checkpoint.step_folder(checkpoints, step)
    return checkpoint.commit(target, write_files, step=step, config_hash="c", bytes_needed=1)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture
def newest_valid(checkpoints: Path):
    return lambda: checkpoint.newest_valid(checkpoints, checkpoints.parent / "quarantine")


def test_a_saved_checkpoint_verifies_and_lists_every_file(checkpoints: Path) -> None:
    manifest = checkpoint.verify(make(checkpoints, 7))
    assert manifest["step"] == 7
    assert {name: entry["size"] for name, entry in manifest["files"].items()} == {
        name: len(content) for name, content in FILES.items()
    }
    assert [path.name for path in checkpoints.iterdir()] == ["step-00000007"]


@pytest.mark.reliability("R2")
def test_every_flipped_bit_is_detected(checkpoints: Path, count_cases: Callable[[int], None]) -> None:
    count_cases(400)
    folder = make(checkpoints, 1)
    names = [*FILES, checkpoint.MANIFEST]
    generator = random.Random(0)
    flips = [(name, bit) for name in names for bit in range((folder / name).stat().st_size * 8)]
    for name, bit in generator.sample(flips, 400):
        path = folder / name
        content = path.read_bytes()
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        # A flip inside the format's number is read as another format, which is refused but not called broken.
        with pytest.raises(CheckpointError, match="step-00000001"):
            checkpoint.verify(folder)
        path.write_bytes(content)
    checkpoint.verify(folder)


@pytest.mark.reliability("R3")
@pytest.mark.parametrize("name", [*FILES, checkpoint.MANIFEST])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_truncated_file_is_named(checkpoints: Path, name: str, share: float) -> None:
    folder = make(checkpoints, 1)
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: int(len(content) * share)])
    with pytest.raises(BrokenCheckpoint, match=name):
        checkpoint.verify(folder)


@pytest.mark.reliability("R3")
@pytest.mark.parametrize("name", [*FILES, checkpoint.MANIFEST])
def test_missing_replaced_and_linked_files_are_named(checkpoints: Path, tmp_path: Path, name: str) -> None:
    folder = make(checkpoints, 1)
    path = folder / name
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    with pytest.raises(BrokenCheckpoint, match=name):
        checkpoint.verify(folder)
    path.mkdir()
    with pytest.raises(BrokenCheckpoint, match=name):
        checkpoint.verify(folder)
    path.rmdir()
    path.symlink_to(elsewhere)  # the same content, but from outside the checkpoint
    with pytest.raises(BrokenCheckpoint, match=name):
        checkpoint.verify(folder)


@pytest.mark.reliability("R3")
def test_extra_file_and_linked_folder_are_named(checkpoints: Path, tmp_path: Path) -> None:
    folder = make(checkpoints, 1)
    (folder / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(BrokenCheckpoint, match=r"pytorch_model\.bin"):
        checkpoint.verify(folder)
    (folder / "pytorch_model.bin").unlink()
    (folder / "more").symlink_to(tmp_path)
    with pytest.raises(BrokenCheckpoint, match="more"):
        checkpoint.verify(folder)


@pytest.mark.reliability("R9")
def test_a_manifest_that_points_outside_reads_nothing_there(checkpoints: Path, tmp_path: Path) -> None:
    folder = make(checkpoints, 1)
    (tmp_path / "secret").write_text("secret")
    path = folder / checkpoint.MANIFEST
    manifest = json.loads(path.read_text())
    del manifest["manifest_sha256"]
    manifest["files"]["../../secret"] = {"size": 6, "sha256": "0"}
    manifest["manifest_sha256"] = checkpoint._self_hash(manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(BrokenCheckpoint, match="secret is missing"):
        checkpoint.verify(folder)


def test_newest_valid_falls_back_and_quarantines(checkpoints: Path, newest_valid) -> None:
    for step in (1, 2, 3):
        make(checkpoints, step)
    (checkpoints / "step-00000003" / "state.json").write_bytes(b'{"step": 2}')
    (checkpoints / "step-00000002" / "model.safetensors").unlink()
    found = newest_valid()
    assert found.path == checkpoints / "step-00000001"
    quarantine = checkpoints.parent / "quarantine"
    assert sorted(path.name for path in quarantine.iterdir()) == ["step-00000002", "step-00000003"]
    assert "state.json" in (quarantine / "step-00000003" / "reason.txt").read_text()
    assert (quarantine / "step-00000003" / "checkpoint" / "model.safetensors").is_file()
    assert newest_valid() == checkpoint.Found(found.path)


def test_none_valid_is_an_error_now_and_on_every_later_try(checkpoints: Path, newest_valid) -> None:
    (make(checkpoints, 1) / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"state\.json is missing"):
        newest_valid()
    with pytest.raises(CheckpointError, match="no checkpoint"):
        newest_valid()


def test_no_candidate_is_no_error(checkpoints: Path, newest_valid) -> None:
    assert newest_valid().path is None
    (checkpoints / ".tmp-step-00000001").mkdir(parents=True)
    assert newest_valid().path is None


def test_a_copy_under_another_step_is_broken(checkpoints: Path, newest_valid) -> None:
    make(checkpoints, 1).rename(checkpoints / "step-00000009")
    with pytest.raises(CheckpointError, match="step 1"):
        newest_valid()


@pytest.mark.reliability("R14")
def test_a_newer_format_is_refused_and_stays_where_it_is(checkpoints: Path, newest_valid, monkeypatch) -> None:
    monkeypatch.setattr(checkpoint, "SCHEMA_VERSION", 2)
    folder = make(checkpoints, 1)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="format 2"):
        newest_valid()
    assert folder.is_dir()


def test_a_failing_write_leaves_nothing(checkpoints: Path) -> None:
    def fail(folder: Path) -> None:
        write_files(folder)
        raise OSError(28, "No space left on device")

    with pytest.raises(DiskError, match="1,234 bytes needed"):
        checkpoint.commit(checkpoints / "step-00000001", fail, step=1, config_hash="c", bytes_needed=1234)
    assert list(checkpoints.iterdir()) == []


def test_prune_keeps_the_newest_and_the_best(checkpoints: Path) -> None:
    for step in (1, 2, 3, 99_999_999, 100_000_000):
        make(checkpoints, step)
    checkpoint.prune(checkpoints, keep_last=2, keep_steps=[2])
    names = [path.name for path in checkpoint.list_checkpoints(checkpoints)]
    assert names == ["step-00000002", "step-99999999", "step-100000000"]
    assert len(list(checkpoints.iterdir())) == 3


def test_checkpoints_that_may_not_be_listed_are_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that took them for gone would begin anew."""

    def refuse(path: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "listdir", refuse)
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError):
        checkpoint.list_checkpoints(tmp_path)


def test_a_disk_that_refuses_to_prune_is_said(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2):
        make(checkpoints, step)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(DiskError, match="Input/output error"):
        checkpoint.prune(checkpoints, keep_last=1, keep_steps=[])
    assert checkpoint.newest_valid(checkpoints, checkpoints.parent / "quarantine").path == checkpoints / "step-00000002"
