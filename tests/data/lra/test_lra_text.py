"""Text: every format gives the same bytes, none of which is touched, and every fault is named by file and line."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from lra_files import pack, reviews, write_imdb_folders, write_jsonl, write_tsv

from transnormer.data.examples import ExampleStore
from transnormer.data.lra.byte_text import to_ids
from transnormer.errors import ConfigError, DataError


def texts(store: ExampleStore, *names: str) -> list[tuple[bytes, int]]:
    """The reviews again, in any order."""
    splits = [store.split(name) for name in names]
    return sorted(
        (bytes((split.sequence(number) - 1).tolist()), int(split.labels[number]))
        for split in splits
        for number in range(len(split))
    )


def cut(texts: list[tuple[bytes, int]]) -> list[tuple[bytes, int]]:
    return sorted((text[:4000], label) for text, label in texts)


def sources(folder: Path) -> dict[str, Path]:
    """The same reviews in every format."""
    folders = write_imdb_folders(folder / "folders")
    return {
        "the parent of aclImdb": folders,
        "aclImdb": folders / "aclImdb",
        "archive": pack(folders, folder / "aclImdb_v1.tar.gz"),
        "jsonl": write_jsonl(folder / "jsonl"),
        "tsv": write_tsv(folder / "tsv"),
        "tsv with names": write_tsv(folder / "named", "label\ttext"),
        "tsv with names, text first": write_tsv(folder / "turned", "text\tlabel"),
    }


def test_every_format_gives_the_same_reviews(prepared: Callable, tmp_path: Path):
    for name, source in sources(tmp_path).items():
        store = prepared("lra/text", source=source)
        assert {split: len(store.split(split)) for split in store.splits} == {"train": 18, "valid": 2, "test": 20}
        assert texts(store, "train", "valid") == texts(store, "test") == cut(reviews()), name
        assert (store.vocab_size, store.num_labels, store.max_length) == (257, 2, 4000)
        assert store.meta["differs_from_published"] == {"train": "20 of 25,000", "test": "20 of 25,000"}


def test_ids_are_bytes_plus_one_and_bytes_that_are_no_text_stay():
    assert to_ids(b"\x00a\xff").tolist() == [1, 98, 256]
    assert len(to_ids(bytes(5000))) == 4000


def test_which_reviews_are_held_out_is_up_to_the_seed(prepared: Callable, tmp_path: Path):
    source = write_jsonl(tmp_path / "reviews")
    first, again, other = (texts(prepared("lra/text", source=source, seed=seed), "valid") for seed in (1, 1, 2))
    assert first == again != other


def test_a_limit_keeps_the_balance_of_a_sorted_source(prepared: Callable, tmp_path: Path):
    store = prepared("lra/text", source=write_imdb_folders(tmp_path / "folders", 80), limit=8)
    for split in ("train", "valid", "test"):
        assert len(store.split(split)) == 8
        assert 2 <= store.split(split).labels.sum() <= 6


def spoil_json(folder: Path, line: bytes) -> Path:
    write_jsonl(folder)
    path = folder / "train.jsonl"
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:6], line, *lines[7:]]))
    return folder


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "x"', "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b"[1]", "no 'text' or no 'label'"),
        (b'{"text": "x"}', "no 'text' or no 'label'"),
        (b'{"text": 3, "label": 1}', "no 'text' or no 'label'"),
        (b'{"text": "x", "label": null}', "no 'text' or no 'label'"),
        (b'{"text": "x", "label": "1"}', 'the label "1" is not a number'),
        (b'{"text": "x", "label": [1]}', r"the label \[1\] is not a number"),
        (b'{"text": "x", "label": 2}', "the label is '2'"),
        (b'{"text": "x", "label": -1}', "the label is '-1'"),
        (b'{"text": "x", "label": 0.5}', "the label is '0.5'"),
        (b'{"text": "x", "label": NaN}', "the label is 'nan'"),
        (b'{"text": " \\n", "label": 1}', "the text is empty"),
        (b'{"text": "\\ud800", "label": 1}', "half a surrogate pair at character 0"),
    ],
)
def test_a_bad_line_of_json(prepared: Callable, tmp_path: Path, line: bytes, message: str):
    with pytest.raises(DataError, match=rf"train.jsonl line 7: {message}"):
        prepared("lra/text", source=spoil_json(tmp_path / "bad", line))
    assert [path.name for path in tmp_path.iterdir()] == ["bad"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"1", "1 columns instead of 2"),
        (b"", "1 columns instead of 2"),
        (b"1\ta\tb", "3 columns instead of 2"),
        (b"2\tx", "the label is '2'"),
        (b"pos\tx", "the label is 'pos'"),
        (b"1\t", "the text is empty"),
    ],
)
def test_a_bad_line_of_a_table(prepared: Callable, tmp_path: Path, line: bytes, message: str):
    path = write_tsv(tmp_path / "bad") / "test.tsv"
    lines = path.read_bytes().split(b"\r\n")
    path.write_bytes(b"\r\n".join([*lines[:4], line, *lines[5:]]))
    with pytest.raises(DataError, match=rf"test.tsv line 5: {message}"):
        prepared("lra/text", source=path.parent)


def test_an_empty_review_is_named(prepared: Callable, tmp_path: Path):
    source = write_imdb_folders(tmp_path / "folders")
    (source / "aclImdb" / "test" / "pos" / "99_7.txt").write_text("\n")
    with pytest.raises(DataError, match=r"test/pos/99_7.txt: the text is empty"):
        prepared("lra/text", source=source)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_truncated_archive(prepared: Callable, tmp_path: Path, share: float):
    archive = pack(write_imdb_folders(tmp_path / "folders"), tmp_path / "aclImdb_v1.tar.gz")
    os.truncate(archive, int(share * archive.stat().st_size))
    with pytest.raises(DataError, match=r"aclImdb_v1.tar.gz is truncated or damaged"):
        prepared("lra/text", source=archive)


def test_what_holds_no_reviews(prepared: Callable, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "half" / "train" / "pos").mkdir(parents=True)
    (tmp_path / "half" / "train" / "pos" / "1_9.txt").write_text("good")
    for source, message in (("absent", "does not exist"), ("empty", "holds no reviews"), ("half", "no test reviews")):
        with pytest.raises(DataError, match=message) as caught:
            prepared("lra/text", source=tmp_path / source)
        assert "aclImdb" in str(caught.value)
    with pytest.raises(ConfigError, match="lra/text cannot be generated: it needs a source"):
        prepared("lra/text")
    with pytest.raises(DataError, match="4 examples are too few"):
        prepared("lra/text", source=write_jsonl(tmp_path / "few", 4))


def test_the_real_reviews(real_data: Callable, prepared: Callable):
    store = prepared("lra/text", source=real_data("imdb"))
    counts = {
        name: (len(store.split(name)), int(store.split(name).labels.sum())) for name in ("train", "valid", "test")
    }
    assert [count for count, _ in counts.values()] == [22_500, 2_500, 25_000]
    assert counts["train"][1] + counts["valid"][1] == counts["test"][1] == 12_500
    assert "differs_from_published" not in store.meta
    assert store.split("test").lengths.max() == 4000
    with (real_data("imdb") / "test.jsonl").open() as file:
        first = json.loads(file.readline())["text"].encode()[:4000]
    assert bytes((store.split("test").sequence(0) - 1).tolist()) == first
