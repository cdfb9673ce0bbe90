"""The run folder: new or refused, one writer at a time, readable by anybody."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

import pytest

from transnormer.config.schema import RunConfig
from transnormer.data.store import TokenStore
from transnormer.errors import ConfigError, DataError, RunInUseError
from transnormer.files import write_json
from transnormer.train.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    return folder


@pytest.fixture
def data(store: Path) -> TokenStore:
    return TokenStore.open(store)


def fingerprint(folder: RunFolder) -> dict[str, tuple[bytes, int]]:
    return {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.path.iterdir() if p.is_file()}


def test_begin_writes_config_environment_and_digest(folder: RunFolder, data: TokenStore) -> None:
    config = RunConfig(seed=3)
    with folder.lock():
        folder.begin(config, data)
    assert folder.read_config() == config
    environment = json.loads(folder.environment_file.read_text())
    assert environment["versions"]["torch"]
    assert environment["command"]
    assert json.loads(folder.data_file.read_text()) == {"store": str(data.path), "digest": data.digest}


def test_a_used_folder_is_refused_with_the_command_to_type(folder: RunFolder, data: TokenStore) -> None:
    with folder.lock():
        folder.begin(RunConfig(), data)
    before = fingerprint(folder)
    with pytest.raises(ConfigError, match=f"transnormer resume {folder.path}"):
        folder.require_new()
    assert fingerprint(folder) == before


def test_foreign_content_and_files_are_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        RunFolder(tmp_path).require_new()
    with pytest.raises(ConfigError, match="is a file"):
        RunFolder(tmp_path / "notes.txt").require_new()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_an_empty_folder_and_one_abandoned_before_its_config_are_new(folder: RunFolder) -> None:
    folder.require_new()
    folder.lock_file.write_text("")
    (folder.path / ".tmp-config.yaml").write_text("half")
    folder.require_new()


def test_a_folder_filled_while_we_waited_is_not_overwritten(folder: RunFolder, data: TokenStore) -> None:
    folder.require_new()
    with folder.lock():
        folder.begin(RunConfig(seed=1), data)
    with folder.lock(), pytest.raises(ConfigError, match="already holds a run"):
        folder.begin(RunConfig(seed=2), data)
    assert folder.read_config().seed == 1


def test_no_run_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.yaml"):
        RunFolder(tmp_path).read_config()


def test_second_writer_is_refused_and_changes_nothing(folder: RunFolder) -> None:
    with folder.lock():
        before = fingerprint(folder)
        with pytest.raises(RunInUseError, match=str(os.getpid())), folder.lock():
            pytest.fail("two writers")
        with pytest.raises(RunInUseError):
            folder.require_new()
        assert fingerprint(folder) == before
    with folder.lock() as stale:
        assert stale is None


def _die_with_the_lock(path: Path) -> None:
    lock = RunFolder(path).lock()
    lock.__enter__()
    os._exit(9)


def test_lock_of_a_dead_process_is_taken_over(folder: RunFolder) -> None:
    child = multiprocessing.get_context("fork").Process(target=_die_with_the_lock, args=(folder.path,))
    child.start()
    child.join()
    assert child.exitcode == 9
    with folder.lock() as stale:
        assert stale is not None
        assert str(child.pid) in stale


def test_tidy_removes_leftovers_and_nothing_else(folder: RunFolder, data: TokenStore) -> None:
    with folder.lock():
        folder.begin(RunConfig(), data)
        (folder.checkpoints / ".tmp-step-00000003").mkdir()
        (folder.checkpoints / ".tmp-step-00000003" / "model.safetensors").write_text("half")
        (folder.checkpoints / "step-00000002").mkdir()
        (folder.path / ".tmp-best.json").write_text("{")
        folder.environment_file.unlink()
        folder.tidy(RunConfig(), data)
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step-00000002"]
    assert sorted(path.name for path in folder.path.iterdir()) == [
        "checkpoints",
        "config.yaml",
        "data.json",
        "environment.json",
        "lock",
    ]


def test_a_result_has_what_a_run_that_goes_on_asks_of_it(folder: RunFolder) -> None:
    assert folder.read_result() is None
    result = {"task": "causal_lm", "steps": 1, "seconds": 1.0, "best": None, "test": None, "metrics": {"loss": 1.5}}
    write_json(folder.result_file, result)
    assert folder.read_result() == result
    for missing in result:
        write_json(folder.result_file, {key: value for key, value in result.items() if key != missing})
        with pytest.raises(DataError, match=rf"result\.json is damaged: TypeError: it has no {missing}"):
            folder.read_result()
