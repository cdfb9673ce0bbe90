"""Files are whole or absent after any fault, and what the disk refuses is said plainly."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from transnormer import files
from transnormer.errors import ConfigError, DiskError, RunInUseError


def refuse(code: int):
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_a_refusal_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    files.write_json(path, {"loss": 1.0})
    monkeypatch.setattr(os, "fsync", refuse(errno.ENOSPC))
    with pytest.raises(DiskError, match=r"cannot write .*record.json: No space left .* bytes needed, .* bytes free"):
        files.write_json(path, {"loss": 2.0})
    assert path.read_text() == '{\n  "loss": 1.0\n}\n'
    assert list(tmp_path.iterdir()) == [path]


def test_content_is_on_the_disk_before_its_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened = []
    fsync, replace = os.fsync, Path.replace

    def noted_fsync(descriptor: int) -> None:
        happened.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def noted_replace(self: Path, target: Path) -> Path:
        happened.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    files.write_text(tmp_path / "a.txt", "whole")
    assert happened == ["file", "rename", "folder"]


def test_a_device_is_written_to_and_not_replaced() -> None:
    with pytest.raises(DiskError, match="cannot write /dev/full: No space left"):
        files.write_text(Path("/dev/full"), "a byte")
    assert Path("/dev/full").is_char_device()


def refused_in(folder: Path) -> None:
    with files.disk_errors(folder, hint="make room"):
        refuse(errno.EACCES)()


def test_only_the_operating_systems_refusals_are_disk_errors(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match=r"Permission denied \(check who may write there"):
        refused_in(tmp_path)
    with pytest.raises(OSError, match="a library's own"), files.disk_errors(tmp_path):
        raise OSError("a library's own")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_new_folder_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    with files.new_folder(tmp_path / "store") as partial:
        (partial / "below").mkdir()
        (partial / "below" / "file").write_text("content")
        assert not (tmp_path / "store").exists()
    assert (tmp_path / "store" / "below" / "file").read_text() == "content"
    with pytest.raises(ConfigError, match="exists already"), files.new_folder(tmp_path / "store"):
        pytest.fail("a folder with content was to be replaced")
    monkeypatch.setattr(os, "fsync", refuse(code))
    with pytest.raises(DiskError), files.new_folder(tmp_path / "other") as partial:
        (partial / "file").write_text("content")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_everything_in_a_new_folder_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(Path(f"/proc/self/fd/{descriptor}").readlink()))
    with files.new_folder(tmp_path / "store") as partial:
        (partial / "below").mkdir()
        (partial / "below" / "file").write_text("content")
    names = [str(path.relative_to(partial)) for path in synced[:-1]]
    assert names == ["below/file", "below", "."]
    assert synced[-1] == tmp_path


def test_one_process_holds_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not files.is_locked(path)
    with files.lock(path) as stale:
        assert stale is None
        assert files.is_locked(path)
        with pytest.raises(RunInUseError, match=rf"{tmp_path} is being written by process {os.getpid()}"):
            files.require_unlocked(path)
        with pytest.raises(RunInUseError), files.lock(path):
            pytest.fail("two hold one lock")
    assert not files.is_locked(path)
    path.write_text('{"pid": 1, "host": "elsewhere"}')
    with files.lock(path) as stale:
        assert stale == "process 1 on elsewhere"


def test_nothing_needs_a_module_that_windows_lacks() -> None:
    """Without fcntl the files can be imported; the lock is a library's, which has one for each system."""
    script = "import sys; sys.modules['fcntl'] = None; import transnormer.files, transnormer.signals"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_locks_need_no_flag_that_windows_lacks(tmp_path: Path) -> None:
    script = "import os, sys; del os.O_NOFOLLOW; from transnormer.files import *\nwith lock(Path(sys.argv[1])): pass"
    subprocess.run([sys.executable, "-c", script, tmp_path / "lock"], check=True)


def test_nothing_is_deleted_or_moved_while_it_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows refuses both."""
    held = tmp_path / ".store.unfinished.lock"
    for name in ("unlink", "rename"):
        system_call = getattr(Path, name)

        def checked(path: Path, *arguments: Path, call: Callable[..., None] = system_call, **options: bool) -> None:
            assert not held.is_relative_to(path) or not files.is_locked(held)
            call(path, *arguments, **options)

        monkeypatch.setattr(Path, name, checked)
    with files.resumable_folder(tmp_path / "store") as folder:
        assert files.is_locked(held)
        (folder / "data").write_text("x")
    assert [file.name for file in (tmp_path / "store").iterdir()] == ["data"]
    assert [folder.name for folder in tmp_path.iterdir()] == ["store"]


def test_folders_cannot_be_synced_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    system_open = os.open

    def noted(path: Path, flags: int) -> int:
        opened.append(flags)
        return system_open(path, flags)

    (tmp_path / "file").write_text("x")
    monkeypatch.setattr(files.os, "open", noted)
    monkeypatch.setattr(files, "_ON_WINDOWS", True)
    files.sync(tmp_path)
    files.sync(tmp_path / "file")
    assert opened == [os.O_RDWR]


def test_a_permission_is_not_a_full_disk(tmp_path: Path) -> None:
    for code, told in ((errno.EACCES, "who may write"), (errno.EROFS, "can be written"), (errno.ENOSPC, "make room")):
        with pytest.raises(DiskError, match=told), files.disk_errors(tmp_path, hint="make room"):
            refuse(code)()
