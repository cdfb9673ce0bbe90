"""Retrieval: five columns without quoting, and every fault is named by file and line."""

from collections.abc import Callable
from pathlib import Path

import pytest
from lra_files import TEXTS, write_pairs

from transnormer.errors import DataError


def test_pairs_come_out_as_they_stand_in_the_file(prepared: Callable, tmp_path: Path):
    root = write_pairs(tmp_path / "lra_release")
    for source in (root, root / "tsv_data", tmp_path):
        store = prepared("lra/retrieval", source=source)
        assert {name: len(store.split(name)) for name in store.splits} == {"train": 12, "valid": 12, "test": 12}
        assert store.sequences == 2
        split = store.split("train")
        assert split.labels.tolist() == [number % 2 for number in range(12)]
        for number in range(12):
            first, second = (bytes((split.sequence(number, which) - 1).tolist()) for which in (0, 1))
            assert first == (b'about "' + TEXTS[number % 4])[:4000]
            assert second == b"its %d sources \xfe" % number
    assert store.meta["differs_from_published"]["valid"] == "12 of 18,090"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"1.0\ta\tb\tx", "4 columns instead of 5"),
        (b'1.0\ta\tb\t"x\ty"\tz', "6 columns instead of 5"),
        (b"", "1 columns instead of 5"),
        (b"0.5\ta\tb\tx\ty", "the label is '0.5'"),
        (b"2\ta\tb\tx\ty", "the label is '2'"),
        (b"label\tid1\tid2\ttext1\ttext2", "the label is 'label'"),
        (b"1.0\ta\tb\t\ty", "the text is empty"),
        (b"1.0\ta\tb\tx\t ", "the text is empty"),
    ],
)
def test_a_bad_line(prepared: Callable, tmp_path: Path, line: bytes, message: str):
    path = write_pairs(tmp_path / "bad") / "tsv_data" / "new_aan_pairs.eval.tsv"
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:2], line, *lines[3:]]))
    with pytest.raises(DataError, match=rf"new_aan_pairs.eval.tsv line 3: {message}"):
        prepared("lra/retrieval", source=tmp_path / "bad")
    assert [path.name for path in tmp_path.iterdir()] == ["bad"]


def test_files_that_are_not_there(prepared: Callable, tmp_path: Path):
    source = write_pairs(tmp_path / "pairs")
    (source / "tsv_data" / "new_aan_pairs.eval.tsv").write_bytes(b"")
    with pytest.raises(DataError, match=r"new_aan_pairs.eval.tsv is empty"):
        prepared("lra/retrieval", source=source)
    (source / "tsv_data" / "new_aan_pairs.eval.tsv").unlink()
    with pytest.raises(DataError, match=r"new_aan_pairs.eval.tsv is missing"):
        prepared("lra/retrieval", source=source)
    with pytest.raises(DataError, match=r"has no new_aan_pairs.train.tsv"):
        prepared("lra/retrieval", source=tmp_path)
    with pytest.raises(DataError, match=r"does not exist"):
        prepared("lra/retrieval", source=tmp_path / "absent")


def test_real_pairs(real_data: Callable, prepared: Callable):
    store = prepared("lra/retrieval", source=real_data("peerread_pairs"), limit=500)
    assert [len(store.split(name)) for name in ("train", "valid", "test")] == [500] * 3
    assert 0.4 < store.split("train").labels.mean() < 0.6
    assert store.meta["differs_from_published"]["train"].endswith(" of 147,086")
