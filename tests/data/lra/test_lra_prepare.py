"""Preparing: the same arguments give the same bytes, official files and generators give the same form."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from lra_files import SOURCES, write_listops, write_pairs, write_pathfinder

from transnormer.data.cache import cached_examples
from transnormer.data.example_source import evenly, held_out
from transnormer.data.examples import ExampleStore
from transnormer.data.lra import listops, pathfinder
from transnormer.data.lra.generated import LISTOPS_FILES
from transnormer.data.lra.prepare import plan, prepare
from transnormer.data.lra.retrieval import FILES as PAIRS
from transnormer.data.lra.spec import spec_of
from transnormer.errors import ConfigError, DataError


def content(store: ExampleStore) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in store.path.iterdir()}


@pytest.mark.parametrize("task", SOURCES)
def test_the_same_source_gives_the_same_bytes_wherever_it_lies(prepared: Callable, tmp_path: Path, task: str):
    stores = [prepared(task, source=SOURCES[task](tmp_path / place)) for place in ("here", "there")]
    assert content(stores[0]) == content(stores[1])
    assert stores[0].task == task


@pytest.mark.parametrize(("task", "limit"), [("lra/listops", 5), ("lra/pathfinder", 10)])
def test_the_same_seed_gives_the_same_bytes(prepared: Callable, task: str, limit: int):
    first, again, other = (content(prepared(task, limit=limit, seed=seed)) for seed in (3, 3, 4))
    assert first == again
    assert first["train-ids-00000.bin"] != other["train-ids-00000.bin"]
    assert set(first) == set(other)


def test_generated_splits_follow_each_other(prepared: Callable):
    store = prepared("lra/listops", limit=4, seed=2)
    generated = list(listops.generate(12, 2, processes=1))
    for start, name in ((0, "train"), (4, "valid"), (8, "test")):
        split = store.split(name)
        for number in range(4):
            tokens, label = generated[start + number]
            assert split.sequence(number).tolist() == tokens.tolist()
            assert split.labels[number] == label == listops.evaluate(tokens)
    assert (store.vocab_size, store.num_labels, store.max_length) == (16, 10, 2000)


def test_official_listops_are_read_as_they_are(prepared: Callable, tmp_path: Path):
    store = prepared("lra/listops", source=write_listops(tmp_path / "lra_release"))
    for seed, name in enumerate(("train", "valid", "test")):
        expected = list(listops.generate(6, seed, processes=1))
        split = store.split(name)
        assert split.labels.tolist() == [label for _, label in expected]
        assert [split.sequence(number).tolist() for number in range(6)] == [ids.tolist() for ids, _ in expected]


def test_a_seed_without_anything_to_draw_is_refused(prepared: Callable, tmp_path: Path):
    source = write_listops(tmp_path / "official")
    with pytest.raises(ConfigError, match="there is nothing to draw"):
        prepared("lra/listops", source=source, seed=7)


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (
            "lra/text",
            ["ai.stanford.edu/~amaas/data/sentiment", "aclImdb_v1.tar.gz", "7c2ac02c03563afcf9b574c7e56c153a"],
        ),
        ("lra/image", ["www.cs.toronto.edu/~kriz/cifar.html", "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e"]),
        ("lra/retrieval", ["github.com/google-research/long-range-arena", "lra_release.gz", *PAIRS.values()]),
    ],
)
def test_it_is_said_where_the_files_are_to_be_had_and_how_to_know_them(task: str, told: list[str]):
    with pytest.raises(ConfigError) as caught:
        plan(task)
    assert caught.value.message == f"{task} cannot be generated: it needs a source"
    assert f"`transnormer data prepare {task} --source PATH --out STORE`" in str(caught.value.hint)
    assert [words for words in told if words not in str(caught.value.hint)] == []


def test_what_is_generated_can_also_be_had():
    for task, files in (("lra/listops", LISTOPS_FILES.values()), ("lra/pathfinder", ["imgs/", "metadata/"])):
        assert [name for name in (*files, "lra_release.gz") if name not in spec_of(task).about_source] == []


def test_official_pathfinder_is_split_at_random(prepared: Callable, tmp_path: Path):
    source = write_pathfinder(tmp_path / "lra_release")
    stores = [prepared("lra/pathfinder", source=source, seed=seed) for seed in (0, 1)]
    expected = sorted((image.tobytes(), label) for image, label, _ in pathfinder.generate(20, 1, 32, processes=1))
    for store in stores:
        assert [len(store.split(name)) for name in ("train", "valid", "test")] == [16, 2, 2]
        splits = [store.split(name) for name in store.splits]
        found = [(s.sequence(i).tobytes(), int(s.labels[i])) for s in splits for i in range(len(s))]
        assert sorted(found) == expected
    valid = [[store.split("valid").sequence(i).tobytes() for i in range(2)] for store in stores]
    assert valid[0] != valid[1]


def test_larger_pathfinders(prepared: Callable, tmp_path: Path):
    assert content(prepared("lra/pathfinder", limit=2)) == content(prepared("lra/pathfinder", limit=2, size=32))
    store = prepared("lra/pathfinder", limit=2, size=64)
    assert store.max_length == 64 * 64
    assert len(store.split("train").sequence(0)) == 64 * 64
    assert store.meta["differs_from_published"] == {"each image": "64 x 64 pixels, not 32 x 32"}
    with pytest.raises(ConfigError, match="no Pathfinder of size 33"):
        prepared("lra/pathfinder", limit=2, size=33)
    with pytest.raises(ConfigError, match="lra/listops has no image size"):
        prepared("lra/listops", limit=2, size=64)
    with pytest.raises(DataError, match=r"is 32x32, not 64x64"):
        prepared("lra/pathfinder", source=write_pathfinder(tmp_path / "p") / "pathfinder32", size=64)


def spoiled_listops(folder: Path) -> Path:
    path = write_listops(folder) / "listops-1000" / "basic_val.tsv"
    lines = path.read_bytes().split(b"\r\n")
    path.write_bytes(b"\r\n".join([*lines[:3], b"( ( [MAX 4 ) ] )\t11", *lines[4:]]))
    return folder


def test_a_fault_in_official_files_leaves_nothing(prepared: Callable, tmp_path: Path):
    with pytest.raises(DataError, match=r"basic_val.tsv line 4: the label is 11"):
        prepared("lra/listops", source=spoiled_listops(tmp_path / "bad"))
    with pytest.raises(DataError, match=r"has no basic_train.tsv"):
        prepared("lra/listops", source=tmp_path)
    with pytest.raises(DataError, match=r"has no metadata"):
        prepared("lra/pathfinder", source=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["bad"]


def test_unknown_tasks_and_places_that_are_taken(prepared: Callable, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"unknown Long-Range Arena task 'lra/listop'.*did you mean 'lra/listops'"):
        prepared("lra/listop")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        prepare("lra/listops", tmp_path / "taken", limit=1, processes=1)
    with pytest.raises(ConfigError, match="seed"):
        prepared("lra/listops", limit=1, seed=-1)


def test_progress_is_reported_to_the_end(prepared: Callable):
    seen: list[tuple[int, int]] = []
    prepared("lra/listops", limit=50, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(100, 150), (150, 150)]


def test_a_tenth_is_held_out_and_nothing_is_lost():
    splits = held_out(50, 0, "valid", "test")
    assert [len(splits[name]) for name in ("train", "valid", "test")] == [40, 5, 5]
    assert sorted(np.concatenate(list(splits.values()))) == list(range(50))
    assert all((np.diff(numbers) > 0).all() for numbers in splits.values())


def test_evenly_spaced_numbers():
    assert evenly(np.arange(10), 4).tolist() == [0, 2, 5, 7]
    assert evenly(np.arange(3), 4).tolist() == [0, 1, 2]
    assert evenly(np.arange(3), None).tolist() == [0, 1, 2]


def test_first_use_prepares_and_second_use_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRANSNORMER_CACHE", str(tmp_path / "cache"))
    source = write_pairs(tmp_path / "pairs")
    path = cached_examples(plan("lra/retrieval", source))
    written = (path / "manifest.json").stat().st_mtime_ns
    assert cached_examples(plan("lra/retrieval", str(source))) == path
    assert (path / "manifest.json").stat().st_mtime_ns == written
    assert cached_examples(plan("lra/retrieval", source, limit=5)) != path
    changed = source / "tsv_data" / "new_aan_pairs.test.tsv"
    changed.write_bytes(changed.read_bytes() + b"0.0\ta\tb\tx\ty\n")
    assert cached_examples(plan("lra/retrieval", source)) != path
    assert len(ExampleStore.open(path).split("test")) == 12


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_the_workers_too(tmp_path: Path, number: signal.Signals):
    arguments = ["data", "prepare", "lra/pathfinder", "--processes", "2", "--out", str(tmp_path / "store")]
    process = subprocess.Popen(
        [sys.executable, "-m", "transnormer", *arguments],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 300
        while not any(tmp_path.glob(".store.partial-*/*")):  # as soon as a worker has made something
            assert time.monotonic() < deadline, "waited too long"
            time.sleep(0.01)
        process.send_signal(number)
        output, _ = process.communicate(timeout=300)  # the end of the output, which all of them have open
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail("a worker is left")
    if number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
        return
    assert (process.returncode, output) == (128 + signal.SIGTERM, b"")
    assert not any(tmp_path.iterdir())


def test_a_sigterm_handler_of_somebody_else_stays(prepared: Callable):
    def handle(*_: object) -> None:
        """Theirs."""

    seen = []
    before = signal.signal(signal.SIGTERM, handle)
    try:
        prepared("lra/listops", limit=50, progress=lambda *_: seen.append(signal.getsignal(signal.SIGTERM)))
        assert {*seen, signal.getsignal(signal.SIGTERM)} == {handle}
    finally:
        signal.signal(signal.SIGTERM, before)
