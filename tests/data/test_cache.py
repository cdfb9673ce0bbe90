"""Stores on first use: made once, shared by processes that ask at once, made anew when the source changes."""

import os
import signal
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from transnormer.data import cache as cache_module
from transnormer.data import prepare
from transnormer.data.cache import cached_store
from transnormer.data.store import TokenStore
from transnormer.errors import DataError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRANSNORMER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "stores"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_text("some line of text\n" * 200)
    return path


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_the_second_call_finds_the_first_ones_store(cache: Path, text: Path):
    path = cached_store("text", source=str(text))
    written = (path / "manifest.json").stat().st_mtime_ns
    assert cached_store("text", source=str(text)) == path
    assert (path / "manifest.json").stat().st_mtime_ns == written
    assert visible(cache) == [path.name]


def test_a_store_that_is_there_needs_no_writing(cache: Path, text: Path):
    """A cache may be read-only; a folder in place of the lock file refuses to be written also to root."""
    path = cached_store("text", source=str(text))
    lock = cache / f".{path.name}.lock"
    lock.unlink()
    lock.mkdir()
    assert cached_store("text", source=str(text)) == path


def test_every_option_and_the_contents_of_the_source_make_another_store(cache: Path, text: Path):
    paths = [
        cached_store("text", source=str(text)),
        cached_store("text", source=str(text), limit_bytes=500),
        cached_store("text", "bpe", 270, source=str(text)),
        cached_store("text", "bpe", 271, source=str(text)),
    ]
    text.write_text("another line of text\n" * 200)
    paths.append(cached_store("text", source=str(text)))
    assert len(set(paths)) == 5
    assert visible(cache) == sorted(path.name for path in paths)


def forked(function: Callable[..., None], *arguments: object) -> BaseProcess:
    """A process that has imported already what this one has; what it patches is its own."""
    process = get_context("fork").Process(target=function, args=arguments)
    process.start()
    return process


def ask(text: Path, notes: Path, me: str) -> None:
    """Ask for a store when the other process is ready to, and note what came of it."""
    write_store = cache_module.write_store

    def slow_write_store(plan: object, path: Path) -> None:
        (notes / f"{me} writes").touch()
        time.sleep(0.5)
        write_store(plan, path)

    cache_module.write_store = slow_write_store
    (notes / f"{me} is ready").touch()
    while len(list(notes.glob("* is ready"))) < 2:
        time.sleep(0.01)
    (notes / f"{me} found").write_text(str(cached_store("text", "bpe", 280, source=str(text))))


def test_processes_that_ask_at_once_share_one_store(cache: Path, text: Path, tmp_path: Path):
    notes = tmp_path / "notes"
    notes.mkdir()
    running = [forked(ask, text, notes, me) for me in ("a", "b")]
    for process in running:
        process.join()
        assert process.exitcode == 0
    assert len(list(notes.glob("* writes"))) == 1
    (found,) = {file.read_text() for file in notes.glob("* found")}
    TokenStore.open(found).verify()
    assert visible(cache) == [Path(found).name]


def ask_and_be_killed(text: Path) -> None:
    prepare.SECONDS_BETWEEN_NOTES = 0
    prepare.to_json = lambda manifest: os.kill(os.getpid(), signal.SIGKILL)
    cached_store("text", source=str(text))


def test_what_a_killed_process_left_is_continued(cache: Path, text: Path):
    """Killed as all was tokenized; the next one only writes the manifest, and not one file is left over."""
    killed = forked(ask_and_be_killed, text)
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    assert visible(cache) == []
    (unfinished,) = cache.glob(".*.unfinished")
    written = (unfinished / "train-00000.bin").stat().st_ino
    path = cached_store("text", source=str(text))
    TokenStore.open(path).verify()
    assert (path / "train-00000.bin").stat().st_ino == written
    assert not list(cache.glob(".*.unfinished"))
    assert sorted(file.name for file in path.iterdir() if file.is_file()) == [
        "manifest.json",
        *(f"{split}-00000.bin" for split in ("test", "train", "valid")),
    ]


def test_a_damaged_store_is_an_error_not_a_fresh_start(cache: Path, text: Path):
    path = cached_store("text", source=str(text))
    os.truncate(path / "train-00000.bin", 10)
    with pytest.raises(DataError, match=r"train-00000.bin has 10 bytes.*remove .* and prepare it again"):
        cached_store("text", source=str(text))
