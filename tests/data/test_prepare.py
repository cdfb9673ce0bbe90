"""Preparing a store: exact counts, the same bytes every time, and nothing left behind by a failure."""

import hashlib
import json
import logging
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from transnormer.data import excerpts
from transnormer.data.corpora import Corpus
from transnormer.data.excerpts import whole_file
from transnormer.data.prepare import Plan, prepare, write_store
from transnormer.data.store import SplitInfo, TokenStore
from transnormer.data.tokenizer_choice import TokenizerChoice
from transnormer.data.tokenizers import load_tokenizer
from transnormer.errors import ConfigError, DataError

BOOK = "".join(f"Chapter {i}.\n\nIt was a dark  and stormy night ☃ {i * 37}.\n" for i in range(400))
WIKI = " \n = A Title = \n \n The <unk> cat , the cat @-@ bird . \n"


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text(BOOK, encoding="utf-8")
    return path


@pytest.fixture
def wiki(tmp_path: Path) -> Path:
    folder = tmp_path / "wiki"
    folder.mkdir()
    (folder / "wiki.train.tokens").write_text(WIKI * 5)
    (folder / "wiki.valid.tokens").write_text(WIKI + " The dog . \n")
    return folder


def decoded(store: TokenStore, split: str) -> str:
    ids = store.split(split).read(0, len(store.split(split)))
    return load_tokenizer(store.tokenizer_path).decode(ids, skip_special_tokens=True)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("tokenizer", ["byte", "bpe"])
def test_a_text_comes_back_from_its_store(tmp_path: Path, book: Path, tokenizer: str):
    size = {"bpe": 400}.get(tokenizer)
    store = TokenStore.open(prepare("text", tmp_path / "store", tokenizer=tokenizer, vocab_size=size, source=book))
    store.verify()
    parts = [decoded(store, split) for split in ("train", "valid", "test")]
    assert "".join(parts) == BOOK
    for split, part in zip(("train", "valid", "test"), parts, strict=True):
        info = store.splits[split]
        assert (info.bytes, info.words) == (len(part.encode()), len(part.split()))
    end = load_tokenizer(store.tokenizer_path).eos_token_id
    for split in ("train", "valid", "test"):
        ids = store.split(split).read(0, len(store.split(split)))
        assert np.flatnonzero(ids == end).tolist() == [len(ids) - 1]  # one end, at the end of the one document


def test_documents_are_separated(tmp_path: Path):
    for i in range(60):
        (tmp_path / f"{i:02}.txt").write_text(f"document {i}\n" * 3)
    store = TokenStore.open(prepare("text", tmp_path / "store", source=str(tmp_path / "*.txt")))
    documents = {
        split: int((store.split(split).read(0, info.tokens) == 257).sum()) for split, info in store.splits.items()
    }
    assert documents["train"] + documents["valid"] + documents["test"] == 60
    assert min(documents.values()) >= 3
    for split, info in store.splits.items():
        assert info.tokens == info.bytes + documents[split]


@pytest.mark.parametrize(
    "options",
    [
        {"corpus": "text", "tokenizer": "byte", "source": str(Path(sysconfig.get_path("stdlib"), "json", "*.py"))},
        {"corpus": "text", "tokenizer": "byte"},
        {"corpus": "text", "tokenizer": "bpe", "vocab_size": 500},
        {"corpus": "wikitext103"},
        {"corpus": "wikitext2", "tokenizer": "bpe", "vocab_size": 300},
    ],
)
def test_prepared_twice_is_byte_identical(tmp_path: Path, book: Path, wiki: Path, options: dict):
    options = {"source": book if options["corpus"] == "text" else wiki, **options}
    first, second = (everything(prepare(out=tmp_path / name, **options)) for name in ("one", "two"))
    assert first == second
    assert "manifest.json" in first


def test_prepared_in_another_process_and_from_another_folder_is_byte_identical(tmp_path: Path, book: Path):
    """Hash seeds and thread timing differ between processes; neither may reach the store."""
    here = prepare("text", tmp_path / "here", tokenizer="bpe", vocab_size=500, source=book)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / book.name).write_bytes(book.read_bytes())
    script = (
        "from transnormer.data.prepare import prepare\n"
        "prepare('text', 'store', tokenizer='bpe', vocab_size=500, source='book.txt')\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7", "TOKENIZERS_PARALLELISM": "false"}
    subprocess.run([sys.executable, "-c", script], cwd=elsewhere, env=environment, check=True)
    assert everything(here) == everything(elsewhere / "store")


def test_wikitext_by_words(tmp_path: Path, wiki: Path, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        store = TokenStore.open(prepare("wikitext103", tmp_path / "store", source=wiki))
    tokenizer = load_tokenizer(store.tokenizer_path)
    tokens = tokenizer.convert_ids_to_tokens(store.split("valid").read(0, store.splits["valid"].tokens))
    # 'dog' is not in the train file.
    assert " ".join(tokens) == "</s> = A Title = </s> </s> The <unk> cat , the cat @-@ bird . </s> The <unk> . </s>"
    assert store.splits["valid"] == SplitInfo(tokens=21, bytes=len(WIKI) + 12, words=21)
    vocabulary = tokenizer.convert_ids_to_tokens(range(8))
    assert vocabulary[:6] == ["<s>", "<pad>", "</s>", "<unk>", "=", "cat"]
    assert store.vocab_size == 16  # 4 special, 10 words, <mask>, filled up to a multiple of 8
    # A partial copy is noticed and recorded.
    assert store.meta["differs_from_published"]["train"] == "85 of 103,227,021 words"
    assert "do not compare" in caplog.text


def test_words_count_alike_whatever_the_tokenizer(tmp_path: Path, wiki: Path):
    words = {}
    for tokenizer in ("word", "byte", "bpe"):
        store = TokenStore.open(prepare("wikitext103", tmp_path / tokenizer, tokenizer=tokenizer, source=wiki))
        words[tokenizer] = {split: (info.words, info.bytes) for split, info in store.splits.items()}
    assert words["word"] == words["byte"] == words["bpe"]
    assert decoded(TokenStore.open(tmp_path / "bpe"), "train") == WIKI * 5


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 1000])
def test_raw_bytes_are_counted_right_whatever_the_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int):
    raw = b" two  words\xff \xfe\n\nand three more" * 3
    (tmp_path / "raw").write_bytes(raw)
    whole = whole_file(tmp_path / "raw")
    corpus = Corpus("raw", {"train": [whole], "valid": [whole]}, "both the same", raw=True, documents=False)
    monkeypatch.setattr(excerpts, "CHUNK_BYTES", piece)
    write_store(Plan(corpus, TokenizerChoice("byte"), {}), tmp_path / "store")
    store = TokenStore.open(tmp_path / "store")
    assert store.splits["valid"] == SplitInfo(tokens=len(raw), bytes=len(raw), words=len(raw.split()))
    assert store.split("train").read(0, len(raw)).astype(np.uint8).tobytes() == raw


def test_the_limit_cuts_training_text_only(tmp_path: Path, book: Path):
    whole = TokenStore.open(prepare("text", tmp_path / "whole", source=book))
    part = TokenStore.open(prepare("text", tmp_path / "part", source=book, limit_bytes=1000))
    assert part.splits["train"].bytes == 1000
    assert part.splits["valid"] == whole.splits["valid"]
    assert part.splits["test"] == whole.splits["test"]


def test_the_manifest_says_where_the_text_came_from(tmp_path: Path, book: Path):
    prepare("text", tmp_path / "store", tokenizer="bpe", vocab_size=300, source=book)
    meta = json.loads((tmp_path / "store" / "manifest.json").read_text())["meta"]
    assert meta["corpus"] == "text"
    assert meta["tokenizer"] == {"kind": "bpe", "vocab_size": 300, "files": {}}
    assert meta["sources"] == {"book.txt": hashlib.sha256(BOOK.encode()).hexdigest()}
    assert str(tmp_path) not in (tmp_path / "store" / "manifest.json").read_text()


def test_a_saved_tokenizer_is_used_again(tmp_path: Path, book: Path):
    first = prepare("text", tmp_path / "first", tokenizer="bpe", vocab_size=300, source=book)
    again = prepare("text", tmp_path / "again", tokenizer=str(first / "tokenizer"), source=book)
    assert (first / "train-00000.bin").read_bytes() == (again / "train-00000.bin").read_bytes()


# Failures


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"tokenizer": "bpee"}, ConfigError, "unknown tokenizer 'bpee'.*did you mean 'bpe'"),
        ({"tokenizer": "gpt2"}, ConfigError, "use gpt2:FOLDER"),
        ({"tokenizer": "gpt2:nowhere"}, DataError, r"nowhere/vocab.json is missing"),
        ({"tokenizer": "byte", "vocab_size": 300}, ConfigError, "vocabulary of its own"),
        ({"tokenizer": "bpe", "vocab_size": 10}, ConfigError, "vocab_size 10 is too small"),
        ({"corpus": "books"}, ConfigError, "unknown corpus 'books'"),
        ({"source": "absent.txt"}, DataError, r"absent.txt does not exist"),
    ],
)
def test_bad_options_leave_nothing(tmp_path: Path, book: Path, options: dict, kind: type[Exception], message: str):
    with pytest.raises(kind, match=message) as caught:
        prepare(**{"corpus": "text", "source": book, "out": tmp_path / "store", **options})
    assert caught.value.hint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["book.txt"]


@pytest.mark.parametrize("tokenizer", ["byte", "bpe", "word"])
@pytest.mark.parametrize(
    ("content", "message"),
    [(b"latin \xe9\n" * 50, "not UTF-8 text: byte 6"), (b"PK\x03\x04\0\0" * 50, "is binary: byte 4 is NUL")],
)
def test_bad_bytes_leave_nothing(tmp_path: Path, tokenizer: str, content: bytes, message: str):
    (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(DataError, match=rf"bad\.txt .*{message}"):
        prepare("text", tmp_path / "store", tokenizer=tokenizer, source=tmp_path / "bad.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.txt"]


def test_bad_bytes_in_the_held_out_part_leave_nothing(tmp_path: Path):
    (tmp_path / "bad.txt").write_bytes(b"good line\n" * 99 + b"\xff\n")
    with pytest.raises(DataError, match="byte 990 cannot be decoded"):
        prepare("text", tmp_path / "store", source=tmp_path / "bad.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.txt"]


def test_an_existing_store_is_refused_before_any_work(tmp_path: Path, book: Path):
    store = prepare("text", tmp_path / "store", source=book)
    before = everything(store)
    with pytest.raises(ConfigError, match=r"store exists already.*--out"):
        prepare("text", store, source="this is never looked at")
    assert everything(store) == before


def test_raw_bytes_take_no_other_tokenizer(tmp_path: Path):
    with (tmp_path / "enwik8").open("wb") as file:
        file.truncate(100_000_000)
    with pytest.raises(ConfigError, match="raw bytes and takes no 'bpe'"):
        prepare("enwik8", tmp_path / "store", tokenizer="bpe", source=tmp_path)


# Real corpora


def test_the_real_wikitext_validation_file(tmp_path: Path, real_data):
    source = real_data("wikitext-103/wiki.valid.tokens")
    for split in ("train", "valid"):
        (tmp_path / f"wiki.{split}.tokens").symlink_to(source)
    store = TokenStore.open(prepare("wikitext103", tmp_path / "store", source=tmp_path))
    assert store.splits["valid"] == SplitInfo(tokens=217_646, bytes=1_142_309, words=217_646)
    assert "valid" not in store.meta["differs_from_published"]


def test_the_real_enwik8(tmp_path: Path, real_data):
    source = real_data("enwik8/enwik8")
    store = TokenStore.open(prepare("enwik8", tmp_path / "store", source=source))
    store.verify()
    raw = source.read_bytes()
    bounds = {"train": (0, 90_000_000), "valid": (90_000_000, 95_000_000), "test": (95_000_000, 100_000_000)}
    for split, (start, stop) in bounds.items():
        info = store.splits[split]
        assert (info.tokens, info.bytes) == (stop - start, stop - start)
        assert info.words == len(raw[start:stop].split())
        assert store.split(split).read(0, info.tokens).astype(np.uint8).tobytes() == raw[start:stop]
