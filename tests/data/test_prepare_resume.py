"""Preparing a store on all cores and through kills: the same bytes whoever works and whenever it ends."""

from __future__ import annotations

import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from transnormer.data import prepare as prepare_module
from transnormer.data import text_encoder
from transnormer.data.prepare import prepare
from transnormer.data.store import TokenStore
from transnormer.errors import DataError, DiskError, Preempted, RunInUseError
from transnormer.files import resumable_folder

WORDS = ["norm", "diag", "linear", "Ünïcödé", "☃☃", "kernel", "chunk", "don't", "四五六", "state\u3000gap", "\u00a0x"]


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A long document and many short ones."""
    folder = tmp_path_factory.mktemp("texts")
    generator = random.Random(3)
    for name, length in (("long", 4000), *((f"short-{number:02}", 30) for number in range(25))):
        words = generator.choices(WORDS, k=length)
        text = "".join(word + generator.choice([" ", "  ", "\n", "\r\n", " \n\n"]) for word in words)
        (folder / f"{name}.txt").write_bytes(text.encode())
    return folder


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dozens of batches, and a note of each."""
    monkeypatch.setattr(text_encoder, "BATCH_BYTES", 1500)
    monkeypatch.setattr(prepare_module, "SECONDS_BETWEEN_NOTES", 0.0)


def bpe_store(texts: Path, out: Path, **options: Any) -> Path:
    return prepare("text", out, tokenizer="bpe", vocab_size=300, source=str(texts / "*.txt"), **options)


@pytest.fixture(scope="module")
def expected(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The store in one batch for each split, by one process."""
    return everything(bpe_store(texts, tmp_path_factory.mktemp("expected") / "store"))


def in_a_fork(work: Callable[[], Any]) -> int:
    """Run it in a forked process, which is over with it; its wait status."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def killed_at(call: int, work: Callable[[], Any]) -> bool:
    """Run it in a fork, where SIGKILL comes with the given call of a function of ours; whether it came to that."""

    def count() -> Callable[..., None]:
        calls = 0

        def see(frame: Any, event: str, argument: Any) -> None:
            nonlocal calls
            name = frame.f_globals.get("__name__", "")
            if event in ("call", "return") and name.startswith(("transnormer.data", "transnormer.files")):
                calls += 1
                if calls == call:
                    os.kill(os.getpid(), signal.SIGKILL)

        return see

    def watched() -> None:
        sys.setprofile(count())
        work()

    status = in_a_fork(watched)
    assert status in (0, signal.SIGKILL), status
    return status == signal.SIGKILL


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("kind", ["bpe", "word"])
def test_the_number_of_processes_changes_no_byte(
    texts: Path, expected: dict, tmp_path: Path, processes: int, kind: str
):
    if kind == "bpe":
        assert everything(bpe_store(texts, tmp_path / "store", processes=processes)) == expected
        return
    one = prepare("text", tmp_path / "one", tokenizer="word", source=str(texts / "*.txt"), processes=1)
    two = prepare("text", tmp_path / "two", tokenizer="word", source=str(texts / "*.txt"), processes=processes)
    assert everything(one) == everything(two)


def test_killed_anywhere_again_and_again_it_ends_with_the_same_bytes(texts: Path, expected: dict, tmp_path: Path):
    """Each attempt is killed a little later than it began, at another place; some two dozen kills until it is done."""
    steps = random.Random(11)
    out, kills, gone_on = tmp_path / "store", 0, 0
    while killed_at(steps.choice([40, 150, 400, 1100, 2600]), lambda: bpe_store(texts, out)):
        kills += 1
        assert kills < 200
        if out.exists():  # killed after it had appeared, so it must be whole
            break
        with pytest.raises(DataError):
            TokenStore.open(tmp_path / ".store.unfinished")
        gone_on += (tmp_path / ".store.unfinished" / "train-00000.bin").exists()
    assert everything(out) == expected
    assert kills > 5
    assert gone_on
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("part", range(8))
def test_one_kill_at_each_part_of_the_work(texts: Path, expected: dict, tmp_path: Path, part: int):
    """From the first call to the rename: evenly over all calls, and the very last ones."""
    reader, writer = os.pipe()

    def count_calls() -> None:
        calls = 0

        def see(frame: Any, event: str, argument: Any) -> None:
            nonlocal calls
            name = frame.f_globals.get("__name__", "")
            calls += event in ("call", "return") and name.startswith(("transnormer.data", "transnormer.files"))

        sys.setprofile(see)
        bpe_store(texts, tmp_path / "count")
        sys.setprofile(None)
        os.write(writer, str(calls).encode())

    assert in_a_fork(count_calls) == 0
    total = int(os.read(reader, 100))
    os.close(reader)
    os.close(writer)
    call = [1, total // 6, total // 3, total // 2, 2 * total // 3, 5 * total // 6, total - 20, total - 8][part]
    out = tmp_path / "store"
    assert killed_at(call, lambda: bpe_store(texts, out))
    if not out.exists():
        bpe_store(texts, out)
    assert everything(out) == expected


def test_workers_end_with_a_killed_parent_and_the_work_goes_on(texts: Path, expected: dict, tmp_path: Path):
    out, halfway = tmp_path / "store", tmp_path / "halfway"

    def held(stage: str, done: int, total: int) -> None:
        if stage == "tokenizing" and done > total / 2:
            halfway.touch()
            while True:  # until it is killed: who waits for that cannot come too late
                time.sleep(1)

    pid = os.fork()
    if pid == 0:
        os.setsid()
        bpe_store(texts, out, processes=2, progress=held)
        os._exit(0)
    process = psutil.Process(pid)
    while not halfway.exists():
        assert process.status() != psutil.STATUS_ZOMBIE
        time.sleep(0.01)
    workers = process.children(recursive=True)
    assert len(workers) >= 2
    process.kill()
    os.waitpid(pid, 0)
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive
    seen: list[int] = []
    bpe_store(texts, out, progress=lambda stage, done, total: seen.append(done))
    assert seen[0] > 0  # it began where the other one ended
    assert everything(out) == expected


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_and_the_same_call_goes_on(texts: Path, expected: dict, tmp_path: Path, number: int):
    def stop(stage: str, done: int, total: int) -> None:
        if stage == "tokenizing" and done > total / 2:
            os.kill(os.getpid(), number)

    with pytest.raises(Preempted, match=r"stopped before .*store was finished.*the same command goes on"):
        bpe_store(texts, tmp_path / "store", progress=stop)
    assert not (tmp_path / "store").exists()
    assert everything(bpe_store(texts, tmp_path / "store")) == expected


def test_another_plan_starts_afresh(texts: Path, expected: dict, tmp_path: Path):
    out = tmp_path / "store"
    source = str(texts / "*.txt")
    assert killed_at(2000, lambda: prepare("text", out, tokenizer="byte", source=source))
    unfinished = tmp_path / ".store.unfinished"
    assert (unfinished / "train-00000.bin").stat().st_size > 0
    seen: list[tuple[str, int]] = []
    assert everything(bpe_store(texts, out, progress=lambda stage, done, total: seen.append((stage, done)))) == expected
    assert seen[0][0] == "learning the tokenizer"
    assert ("tokenizing", 0) in seen


def test_files_that_lost_bytes_start_afresh(texts: Path, expected: dict, tmp_path: Path):
    """As after a power cut on a disk that had not written what it said it had."""
    out = tmp_path / "store"
    calls = 400
    while not (tmp_path / ".store.unfinished" / "valid-00000.bin").exists():
        assert killed_at(calls, lambda: bpe_store(texts, out))
        calls += 100
    os.truncate(tmp_path / ".store.unfinished" / "train-00000.bin", 3)
    assert everything(bpe_store(texts, out)) == expected


def test_a_full_disk_keeps_what_is_done(texts: Path, expected: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    append = prepare_module.TokenFiles.append

    def full(self: Any, split: str, *rest: Any) -> None:
        if split == "valid":
            raise OSError(28, "No space left on device")
        append(self, split, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(prepare_module.TokenFiles, "append", full)
        with pytest.raises(DiskError, match=r"bytes free\).*the same command again"):
            bpe_store(texts, tmp_path / "store")
    assert (tmp_path / ".store.unfinished" / "train-00000.bin").stat().st_size > 0
    assert everything(bpe_store(texts, tmp_path / "store")) == expected


def test_bad_text_leaves_nothing_to_go_on_with(texts: Path, tmp_path: Path):
    (tmp_path / "train.txt").write_bytes((texts / "long.txt").read_bytes() + b"\nlatin \xe9\n")
    (tmp_path / "valid.txt").write_text("valid text\n" * 9)
    lines = (tmp_path / "train.txt").read_bytes().count(b"\n")
    with pytest.raises(
        DataError, match=rf"train\.txt is not UTF-8 text: byte \d+ cannot be decoded \(line {lines:,}\)"
    ):
        prepare("text", tmp_path / "store", source=str(tmp_path / "*.txt"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.txt", "valid.txt"]


def test_what_is_wrong_comes_back_from_a_worker_as_it_was():
    error = DataError("what", "what to do")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.message, again.hint, str(again)) == (DataError, "what", "what to do", str(error))


def test_one_at_a_time(texts: Path, tmp_path: Path):
    with resumable_folder(tmp_path / "store"), pytest.raises(RunInUseError, match="is being written by process"):
        bpe_store(texts, tmp_path / "store")


# Memory


def peak_above_start(work: Callable[[], Any]) -> int:
    """Bytes of resident memory that some work needs at most, beside what there was."""

    def status(field: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])

    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = status("VmRSS")
    work()
    return status("VmHWM") - before


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """24 MB of text, of which the tokens alone would be 192 MB as numbers of Python's arrays."""
    monkeypatch.setattr(text_encoder, "BATCH_BYTES", 2**20)
    line = ("seven words stand in this long line " * 30 + "\n").encode()
    for name, lines in (("train", 24_000_000 // len(line)), ("valid", 10)):
        (tmp_path / f"{name}.txt").write_bytes(line * lines)
    needed = peak_above_start(lambda: prepare("text", tmp_path / "store", source=str(tmp_path / "*.txt"), processes=1))
    assert needed < 100e6, needed
    assert TokenStore.open(tmp_path / "store").splits["train"].words == 210 * (24_000_000 // len(line))


def test_a_tokenizer_is_learned_from_a_share_of_a_large_text(
    texts: Path, expected: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Which needs no more memory the larger it is, and is said in the manifest."""
    monkeypatch.setattr(prepare_module, "LEARNING_BYTES", 10_000)
    read: list[tuple[int, int]] = []
    store = bpe_store(
        texts, tmp_path / "store", progress=lambda stage, *sizes: read.append(sizes) if stage[0] == "l" else None
    )
    train = TokenStore.open(store).splits["train"].bytes
    every = -(-train // 10_000)
    assert every > 2
    assert read[-1][0] == pytest.approx(train / every, rel=0.2)
    assert read[-1][1] == train // every
    assert TokenStore.open(store).meta["tokenizer"]["learned_from"] == f"one in {every} parts of 1,500 bytes"
    assert everything(store)["tokenizer/tokenizer.json"] != expected["tokenizer/tokenizer.json"]
    monkeypatch.setattr(prepare_module, "LEARNING_BYTES", train)
    assert everything(bpe_store(texts, tmp_path / "all")) == expected


@pytest.mark.slow
def test_200_megabytes_in_a_process_that_may_not_have_two_gibibytes(tmp_path: Path):
    generator = random.Random(5)
    words = ["".join(generator.choices("etaoinshrdlu", k=generator.randint(2, 9))) for _ in range(50_000)]
    with (tmp_path / "train.txt").open("w") as file:
        while file.tell() < 200_000_000:
            file.write(" ".join(generator.choices(words, k=100_000)) + "\n")
    (tmp_path / "valid.txt").write_text(" ".join(words))

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (2**31, 2**31))

    command = [sys.executable, "-m", "transnormer", "data", "prepare", "--text", str(tmp_path / "*.txt")]
    command += ["--tokenizer", "bpe", "--vocab-size", "8000", "--out", str(tmp_path / "store")]
    subprocess.run(command, check=True, preexec_fn=limit, env={**os.environ, "PYTHONPATH": os.getcwd()})  # noqa: PTH109
    TokenStore.open(tmp_path / "store").verify()
