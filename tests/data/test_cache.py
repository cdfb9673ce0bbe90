"""Stores on first use: made once, shared by processes that ask at once, made anew when the source changes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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


AT_ONCE = """
import sys, time
from pathlib import Path
from transnormer.data import cache

text, meeting_point, me = sys.argv[1:]
write_store = cache.write_store

def slow_write_store(plan, path):
    print("writing")
    time.sleep(1)
    write_store(plan, path)

cache.write_store = slow_write_store
Path(meeting_point, me).touch()
while len(list(Path(meeting_point).iterdir())) < 2:
    time.sleep(0.01)
print(cache.cached_store("text", "bpe", 280, source=text))
"""


def test_processes_that_ask_at_once_share_one_store(cache: Path, text: Path, tmp_path: Path):
    (tmp_path / "meet").mkdir()
    command = [sys.executable, "-c", AT_ONCE, str(text), str(tmp_path / "meet")]
    running = [subprocess.Popen([*command, me], stdout=subprocess.PIPE, text=True) for me in ("a", "b")]
    answers = [process.communicate(timeout=600)[0].split() for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert sum(answer.count("writing") for answer in answers) == 1
    assert len({answer[-1] for answer in answers}) == 1
    TokenStore.open(answers[0][-1]).verify()
    assert visible(cache) == [Path(answers[0][-1]).name]


def test_what_a_killed_process_left_is_continued(cache: Path, text: Path):
    """Killed as all was tokenized; the next one only writes the manifest, and not one file is left over."""
    script = (
        "import os, signal\n"
        "from transnormer.data import cache, prepare\n"
        "prepare.SECONDS_BETWEEN_NOTES = 0\n"
        "prepare.to_json = lambda manifest: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"cache.cached_store('text', source={str(text)!r})\n"
    )
    killed = subprocess.run([sys.executable, "-c", script], check=False, timeout=600)
    assert killed.returncode == -signal.SIGKILL
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
