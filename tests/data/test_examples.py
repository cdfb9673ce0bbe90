"""The example store: what is written is read, exists whole or not at all, and any damage is found and named."""

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_store import new_store

from transnormer.data import example_manifest as schema
from transnormer.data.example_writer import WAITING, ExampleWriter, Form
from transnormer.data.examples import ExampleStore
from transnormer.data.manifest import to_json
from transnormer.data.open_store import open_store
from transnormer.data.store import TokenStore
from transnormer.errors import ConfigError, DataError, DiskError

FORM = Form("lra/text", vocab_size=257, num_labels=3, max_length=9)


def write(path: Path, examples: list[tuple[list[list[int]], int]], sequences: int = 1, **changes) -> ExampleStore:
    with ExampleWriter(path, replace(FORM, sequences=sequences, **changes)) as writer:
        for ids, label in examples:
            writer.append("train", [np.array(each) for each in ids], label)
        writer.append("valid", [np.array([1, 2])] * sequences, 0)
    return ExampleStore.open(path)


@pytest.fixture
def store(tmp_path: Path) -> ExampleStore:
    return write(tmp_path / "store", [([[1, 256, 3]], 2), ([[4]], 0), ([[5, 6, 7, 8]], 1)])


sequences = st.lists(st.integers(0, 256), min_size=1, max_size=9)


@settings(max_examples=40)
@given(data=st.data(), count=st.integers(1, 2))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, count: int):
    example = st.tuples(st.lists(sequences, min_size=count, max_size=count), st.integers(0, 2))
    examples = data.draw(st.lists(example, min_size=1, max_size=12))
    store = write(tmp_path_factory.mktemp("store") / "s", examples, count)
    store.verify()
    split = store.split("train")
    assert len(split) == len(examples)
    assert split.tokens == sum(len(ids) for each, _ in examples for ids in each)
    assert split.labels.tolist() == [label for _, label in examples]
    assert split.lengths.tolist() == [[len(ids) for ids in each] for each, _ in examples]
    for number, (each, _) in enumerate(examples):
        assert [split.sequence(number, which).tolist() for which in range(count)] == each


def test_more_examples_than_are_written_together(tmp_path: Path):
    examples = [([[number % 257]], number % 3) for number in range(2 * WAITING + 5)]
    split = write(tmp_path / "store", examples).split("train")
    assert [split.sequence(number).tolist() for number in range(len(split))] == [ids[0] for ids, _ in examples]


@pytest.mark.parametrize(("vocab_size", "dtype"), [(256, "u1"), (257, "<u2")])
def test_files_are_plain_little_endian_arrays(tmp_path: Path, vocab_size: int, dtype: str):
    store = write(tmp_path / "store", [([[1, vocab_size - 1]], 2), ([[0]], 1)], vocab_size=vocab_size)
    assert np.fromfile(store.path / "train-ids-00000.bin", dtype).tolist() == [1, vocab_size - 1, 0]
    assert np.fromfile(store.path / "train-lengths-00000.bin", "<u4").tolist() == [2, 1]
    assert np.fromfile(store.path / "train-labels-00000.bin", "u1").tolist() == [2, 1]


@pytest.mark.parametrize(
    ("ids", "label", "message"),
    [
        ([], 0, "sequence of 0 tokens; lra.text has 1 .. 9"),
        ([1] * 10, 0, "sequence of 10 tokens; lra.text has 1 .. 9"),
        ([257], 0, "outside the vocabulary"),
        ([-1], 0, "outside the vocabulary"),
        ([1], 3, "label 3, not 0 .. 2"),
        ([1], -1, "label -1"),
    ],
)
def test_nothing_is_left_after_an_example_that_does_not_fit(tmp_path: Path, ids: list, label: int, message: str):
    with pytest.raises(DataError, match=message):
        write(tmp_path / "store", [([[1]], 0), ([ids], label)])
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_after_an_error(tmp_path: Path):
    def fail_half_way() -> None:
        with ExampleWriter(tmp_path / "store", FORM) as writer:
            writer.append("train", [np.array([1])], 0)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail_half_way()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_a_disk_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer = ExampleWriter(tmp_path / "store", FORM).__enter__()
    writer.append("train", [np.array([1])], 0)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskError, match="No space left"):
        writer.__exit__(None, None, None)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_writer_leaves_nothing_at_the_path(tmp_path: Path):
    script = (
        "import os, signal, sys, numpy as np\n"
        "from transnormer.data.example_writer import ExampleWriter, Form\n"
        f"with ExampleWriter(sys.argv[1], {FORM}) as writer:\n"
        "    writer.append('train', [np.array([1])], 0)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "store")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "store").exists()
    write(tmp_path / "store", []).verify()


def test_a_store_never_replaces_anything(tmp_path: Path, store: ExampleStore):
    (tmp_path / "file").write_text("mine")
    for taken in (store.path, tmp_path / "file"):
        with pytest.raises(ConfigError, match="exists already"):
            write(taken, [])
    store.verify()
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty", []).verify()


def test_two_writers_at_once_the_second_is_refused(tmp_path: Path):
    path = tmp_path / "store"
    late = ExampleWriter(path, FORM).__enter__()
    late.append("train", [np.array([1])], 0)
    write(path, [([[5, 6]], 1)])
    with pytest.raises(ConfigError, match="exists already"):
        late.__exit__(None, None, None)
    assert ExampleStore.open(path).split("train").sequence(0).tolist() == [5, 6]
    assert list(tmp_path.iterdir()) == [path]


def test_no_folder_to_write_to_is_a_disk_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match="cannot write"):
        write(tmp_path / "file" / "store", [])


@pytest.mark.parametrize("name", ["train-ids-00000.bin", "train-labels-00000.bin", "valid-lengths-00000.bin"])
def test_damage_to_any_file_is_found(store: ExampleStore, name: str):
    path = store.path / name
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=f"{name} was altered"):
        ExampleStore.open(store.path).verify()
    os.truncate(path, 0)
    with pytest.raises(DataError, match=f"{name} has 0 bytes"):
        ExampleStore.open(store.path)
    path.unlink()
    with pytest.raises(DataError, match=f"{name} is missing"):
        ExampleStore.open(store.path)


def rewrite(store: ExampleStore, array: str, values: list[int], dtype: str) -> ExampleStore:
    """Puts other numbers into a file and repairs every hash, as a careful editor would."""
    name = f"train-{array}-00000.bin"
    (store.path / name).write_bytes(np.array(values, dtype=dtype).tobytes())
    manifest = json.loads((store.path / "manifest.json").read_text())
    digest = hashlib.sha256((store.path / name).read_bytes()).hexdigest()
    manifest["splits"]["train"][array][0]["sha256"] = digest
    text = to_json(schema.ExampleManifest.model_validate_json(json.dumps(manifest)))
    (store.path / "manifest.json").write_text(text)
    return ExampleStore.open(store.path)


def test_numbers_that_make_no_sense_are_found_on_reading(store: ExampleStore):
    with pytest.raises(DataError, match=r"labels-00000.bin: label 1 is 7, outside 0 .. 2"):
        _ = rewrite(store, "labels", [2, 7, 1], "u1").split("train").labels
    with pytest.raises(DataError, match=r"lengths-00000.bin: length 0 is 10, outside 1 .. 9"):
        _ = rewrite(store, "lengths", [10, 1, 4], "<u4").split("train").lengths
    with pytest.raises(DataError, match=r"lengths of 'train' are not 8 tokens"):
        _ = rewrite(store, "lengths", [3, 1, 5], "<u4").split("train").lengths
    rewrite(store, "lengths", [3, 1, 4], "<u4")
    split = rewrite(store, "ids", [1, 2, 3, 4, 5, 6, 300, 8], "<u2").split("train")
    assert split.sequence(1).tolist() == [4]
    with pytest.raises(DataError, match=r"ids-00000.bin: token 6 is 300, outside the vocabulary"):
        split.sequence(2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(version=2), "version"),
        (lambda m: m.update(sequences=3), "sequences"),
        (lambda m: m.update(dtype="uint32"), "dtype"),
        (lambda m: m.update(num_labels=1000), "num_labels"),
        (lambda m: m.update(task="lra/image"), "was edited"),
        (lambda m: m["splits"]["train"]["ids"][0].update(file="/etc/passwd"), "inside the store"),
    ],
)
def test_a_manifest_of_another_form(store: ExampleStore, change, message: str):
    path = store.path / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=message):
        ExampleStore.open(store.path)


@pytest.mark.parametrize("count", ["examples", "tokens"])
def test_counts_that_do_not_add_up(store: ExampleStore, count: str):
    path = store.path / "manifest.json"
    content = json.loads(path.read_text())
    content["splits"]["train"][count] += 1
    path.write_text(to_json(schema.ExampleManifest.model_validate_json(json.dumps(content))))
    with pytest.raises(DataError, match=r"splits\.train\.\w+ are not \d+ in all"):
        ExampleStore.open(store.path)


def test_one_kind_of_store_is_not_taken_for_the_other(tmp_path: Path, store: ExampleStore):
    with new_store(tmp_path / "text", vocab_size=9) as writer:
        writer.append("train", np.arange(9))
    assert isinstance(open_store(store.path), ExampleStore)
    assert isinstance(open_store(tmp_path / "text"), TokenStore)
    with pytest.raises(ConfigError, match="holds running text, not labelled examples"):
        ExampleStore.open(tmp_path / "text")
    with pytest.raises(ConfigError, match="holds labelled examples, not running text"):
        TokenStore.open(store.path)
    for path, told in ((tmp_path, r"no manifest\.json"), (tmp_path / "absent", "does not exist")):
        with pytest.raises(DataError, match=told):
            open_store(path)


def test_an_unknown_split_names_the_known_ones(store: ExampleStore):
    with pytest.raises(DataError, match=r"no 'validation' split.*did you mean 'valid'"):
        store.split("validation")
