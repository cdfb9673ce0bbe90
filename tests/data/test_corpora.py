"""Corpora: which bytes are train, valid and test; nothing lost, nothing twice, and errors that name the file."""

import itertools
import os
import sysconfig
from pathlib import Path

import pytest

from transnormer.data.corpora import Corpus, open_corpus
from transnormer.data.excerpts import read_bytes
from transnormer.errors import ConfigError, DataError


def contents(corpus: Corpus) -> dict[str, bytes]:
    return {
        split: b"".join(data for excerpt in excerpts for data in read_bytes(excerpt))
        for split, excerpts in corpus.splits.items()
    }


def write_files(folder: Path, texts: dict[str, str]) -> Path:
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


# Your own text


def test_one_file_is_split_by_its_tail_at_line_ends(tmp_path: Path):
    text = "".join(f"line {i} ☃\n" for i in range(1000))
    write_files(tmp_path, {"book.txt": text})
    corpus = open_corpus("text", str(tmp_path / "book.txt"))
    parts = contents(corpus)
    assert (parts["train"] + parts["valid"] + parts["test"]).decode() == text
    assert all(part.endswith(b"\n") for part in parts.values())
    for split in ("valid", "test"):
        assert len(parts[split]) == pytest.approx(0.05 * len(text.encode()), rel=0.05)


def test_many_files_are_held_out_whole(tmp_path: Path):
    files = write_files(tmp_path, {f"d{i % 3}/{i}.txt": f"text number {i}\n" * 20 for i in range(100)})
    corpus = open_corpus("text", str(files / "**/*.txt"))
    names = {split: [excerpt.name for excerpt in excerpts] for split, excerpts in corpus.splits.items()}
    assert sorted(names["train"] + names["valid"] + names["test"]) == sorted(f"d{i % 3}/{i}.txt" for i in range(100))
    assert all(excerpt.start == 0 for excerpts in corpus.splits.values() for excerpt in excerpts)
    total = sum(map(len, contents(corpus).values()))
    for split in ("valid", "test"):
        assert 0.05 * total <= len(contents(corpus)[split]) <= 0.10 * total
    assert names["train"] == sorted(names["train"])


@pytest.mark.parametrize("name", [f"huge{i}.txt" for i in range(8)])  # some of these come first in hash order
def test_one_huge_file_among_small_ones_is_never_held_out(tmp_path: Path, name: str):
    write_files(tmp_path, {name: "line\n" * 1000, **{f"{i}.txt": "tiny\n" * 25 for i in range(40)}})
    corpus = open_corpus("text", str(tmp_path / "*.txt"))
    assert name in [excerpt.name for excerpt in corpus.splits["train"]]
    assert "whole files" in corpus.split_rule


def test_too_few_files_are_split_by_their_tails(tmp_path: Path):
    write_files(tmp_path, {"huge.txt": "line\n" * 10_000, **{f"{i}.txt": "tiny\n" for i in range(5)}})
    corpus = open_corpus("text", str(tmp_path / "*.txt"))
    assert "first 90 %" in corpus.split_rule
    assert len(contents(corpus)["train"]) > 40_000
    assert sum(map(len, contents(corpus).values())) == 50_025


def test_files_named_after_splits_are_those_splits(tmp_path: Path):
    write_files(tmp_path, {"train.txt": "a\n" * 9, "valid.txt": "b\n", "x/test.txt": "c\n"})
    corpus = open_corpus("text", [str(tmp_path / "*.txt"), str(tmp_path / "x" / "test.txt")])
    assert contents(corpus) == {"train": b"a\n" * 9, "valid": b"b\n", "test": b"c\n"}
    without_test = open_corpus("text", str(tmp_path / "*.txt"))
    assert set(without_test.splits) == {"train", "valid"}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("train.txt", "test.txt"), "there is no valid file beside test.txt and train.txt"),
        (("x/dev.txt", "x/test.txt"), "there is no train file beside dev.txt and test.txt"),
    ],
)
def test_a_missing_split_is_not_made_of_the_others(tmp_path: Path, names: tuple[str, ...], message: str):
    write_files(tmp_path, dict.fromkeys(names, "line\n" * 100))
    with pytest.raises(DataError, match=message) as caught:
        open_corpus("text", str(tmp_path / "**/*.txt"))
    assert "rename" in caught.value.hint


@pytest.mark.parametrize("names", [["train.txt"], ["test.txt"], ["a/train.txt", "b/train.txt"]])
def test_files_of_one_kind_are_cut(tmp_path: Path, names: list[str]):
    write_files(tmp_path, dict.fromkeys(names, "line\n" * 100))
    assert set(open_corpus("text", str(tmp_path / "**/*.txt")).splits) == {"train", "valid", "test"}


def test_a_file_matched_twice_counts_once(tmp_path: Path):
    write_files(tmp_path, {"a.txt": "line\n" * 100})
    once = open_corpus("text", str(tmp_path / "a.txt"))
    twice = open_corpus("text", [str(tmp_path / "*.txt"), str(tmp_path / "a.txt")])
    assert contents(once) == contents(twice)


def test_names_do_not_depend_on_where_the_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    texts = {f"{i}.txt": f"text {i}\n" * 10 for i in range(50)}
    here, there = write_files(tmp_path / "here", texts), write_files(tmp_path / "far" / "there", texts)
    monkeypatch.chdir(tmp_path)
    splits = [
        {
            split: [excerpt.name for excerpt in excerpts]
            for split, excerpts in open_corpus("text", pattern).splits.items()
        }
        for pattern in (str(here / "*.txt"), str(there / "*.txt"), "here/*.txt")
    ]
    assert splits[0] == splits[1] == splits[2]


def test_a_file_name_with_brackets_is_a_file(tmp_path: Path):
    write_files(tmp_path, {"notes [1].txt": "line\n" * 100})
    assert open_corpus("text", str(tmp_path / "notes [1].txt"))


def test_a_file_name_that_is_not_utf8_is_named(tmp_path: Path):
    name = os.fsdecode(b"caf\xe9.txt")
    write_files(tmp_path, {name: "line\n" * 100, "b.txt": "line\n" * 100})
    for source in (tmp_path / "*.txt", tmp_path / name):
        with pytest.raises(DataError, match=r"caf\\udce9\.txt.* is not UTF-8") as caught:
            open_corpus("text", source)
        assert "rename" in caught.value.hint


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        ("none/*.txt", DataError, "no file matches"),
        ("missing.txt", DataError, r"missing.txt does not exist"),
        (".", DataError, "is a folder"),
        ("empty.txt", DataError, r"empty.txt is empty"),
        ("short.txt", DataError, r"short.txt is too short to hold out"),
        ([], ConfigError, "no text files"),
        (None, ConfigError, "no text files"),
    ],
)
def test_text_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source, kind: type[Exception], message: str
):
    monkeypatch.chdir(write_files(tmp_path, {"empty.txt": "", "short.txt": "x"}))
    with pytest.raises(kind, match=message) as caught:
        open_corpus("text", source)
    assert caught.value.hint


# The embedded corpus


def test_the_standard_library_is_split_by_path():
    corpus = open_corpus("python")
    names = {split: [excerpt.name for excerpt in excerpts] for split, excerpts in corpus.splits.items()}
    everything = names["train"] + names["valid"] + names["test"]
    assert len(set(everything)) == len(everything) > 300
    assert {"json/decoder.py", "asyncio/tasks.py", "argparse.py"} <= set(everything)
    assert not any("test" in Path(name).parts or "site-packages" in name for name in everything)
    assert names["train"] == sorted(names["train"])
    assert sum(map(len, corpus.splits["train"])) > 5_000_000
    assert sum(map(len, corpus.splits["valid"])) > 100_000
    # So on every machine and in every version of Python: a file's split depends on its path alone.
    assert "argparse.py" in names["train"]
    assert {"operator.py", "runpy.py"} <= set(names["valid"])
    assert {"shutil.py", "fnmatch.py"} <= set(names["test"])


def test_the_standard_library_takes_no_source():
    with pytest.raises(ConfigError, match="takes no source"):
        open_corpus("python", "somewhere")


def test_a_python_without_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(DataError, match="no sources of Python's standard library"):
        open_corpus("python")


# Published corpora


def test_wikitext_needs_train_and_valid(tmp_path: Path):
    write_files(tmp_path, {"wiki.train.tokens": " = A = \n", "wiki.test.tokens": "x\n"})
    with pytest.raises(DataError, match=r"wiki.valid.tokens is missing"):
        open_corpus("wikitext103", tmp_path)
    write_files(tmp_path, {"wiki.valid.tokens": "y\n"})
    assert list(open_corpus("wikitext103", tmp_path).splits) == ["train", "valid", "test"]
    (tmp_path / "wiki.test.tokens").unlink()
    assert list(open_corpus("wikitext2", str(tmp_path)).splits) == ["train", "valid"]


def test_wikitext_raw_files(tmp_path: Path):
    write_files(tmp_path, {"wiki.train.raw": "a\n", "wiki.valid.raw": "b\n"})
    assert contents(open_corpus("wikitext103", tmp_path)) == {"train": b"a\n", "valid": b"b\n"}


def test_enwik8_is_split_90_5_5(tmp_path: Path):
    path = tmp_path / "enwik8"
    with path.open("wb") as file:  # sparse: takes no disk
        file.truncate(100_000_000)
    for source in (path, tmp_path):
        corpus = open_corpus("enwik8", source)
        bounds = {split: [(e.start, e.stop) for e in excerpts] for split, excerpts in corpus.splits.items()}
        assert bounds == {
            "train": [(0, 90_000_000)],
            "valid": [(90_000_000, 95_000_000)],
            "test": [(95_000_000, 100_000_000)],
        }
        assert corpus.raw


def test_an_enwik8_of_another_size(tmp_path: Path):
    write_files(tmp_path, {"enwik8": "short"})
    with pytest.raises(DataError, match=r"enwik8 has 5 bytes; enwik8 has exactly 100,000,000"):
        open_corpus("enwik8", tmp_path)


def article(number: int) -> str:
    return f" = Number {number} = \nText.\n = = A section = = \nMore text.\n"


def test_enwiki_holds_its_last_articles_out(tmp_path: Path):
    """Those that begin in the last 1 % of the file; of a short one the last. Every byte is in one split."""
    for count in (1000, 100, 20, 2):
        articles = [article(number) for number in range(count)]
        ends = list(itertools.accumulate(map(len, articles)))
        held_out = max(1, sum(end >= ends[-1] - ends[-1] // 100 for end in ends[:-1]))
        write_files(tmp_path, {"train.txt": "".join(articles), "valid.txt": article(0)})
        corpus = open_corpus("enwiki", tmp_path)
        assert (corpus.tokenizer, corpus.stands_in_for) == ("gpt2", "WikiText-103")
        assert contents(corpus) == {
            "train": "".join(articles[:-held_out]).encode(),
            "valid": article(0).encode(),
            "test": "".join(articles[-held_out:]).encode(),
        }


def test_an_enwiki_that_cannot_be_split(tmp_path: Path):
    write_files(tmp_path, {"train.txt": article(1) + "Much more text.\n"})
    with pytest.raises(DataError, match=r"valid.txt is missing .*train.txt and valid.txt.*' = Title = '"):
        open_corpus("enwiki", tmp_path)
    write_files(tmp_path, {"valid.txt": "text"})
    with pytest.raises(DataError, match=r"train.txt has no two articles"):
        open_corpus("enwiki", tmp_path)


@pytest.mark.parametrize("name", ["enwik8", "enwiki", "wikitext103", "wikitext2"])
def test_a_missing_source_says_how_to_give_it(name: str):
    with pytest.raises(ConfigError, match=rf"needs one source.*data prepare {name} --source"):
        open_corpus(name)


def test_an_unknown_corpus_suggests_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown corpus 'wikitext-103'.*did you mean 'wikitext103'"):
        open_corpus("wikitext-103")
