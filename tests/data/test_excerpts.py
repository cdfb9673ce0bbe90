"""Reading text in pieces: the pieces are the text, tokenize like the text, and bad bytes are named."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transnormer.data import excerpts
from transnormer.data.chunking import text_chunks
from transnormer.data.excerpts import Excerpt, cut_at_line, cut_at_words, first_bytes, read_bytes, read_text, whole_file
from transnormer.data.tokenizers import byte_tokenizer, train_bpe, word_tokenizer, word_vocabulary
from transnormer.errors import DataError

LINES = [
    "one  two\n",
    "\n",
    "  \n",
    "three\t\n\n",
    "四五 六\n",
    "don't 's\n",
    " \r\n",
    "x" * 30,
    "\u00a0\n",
    "<eos> end",
    "Windows\r\n",
    "\r\n",
    "! \r\n\r\n",
    "old Mac\r",
    "!\x1c\n",
    "\x85 \u2028\n",
    "\v\f\u3000",
]
BYTES = byte_tokenizer()
WORDS = word_tokenizer(word_vocabulary(Counter("".join(LINES).split())))
TEXTS = st.lists(st.sampled_from(LINES), max_size=30).map("".join)


@pytest.fixture(scope="module")
def bpe():
    """Merges across newlines and spaces, so that a cut in the wrong place would show."""
    return train_bpe(["".join(LINES * 20) + "\n\n\n \n\n\n  \n" * 50], 350)


def ids(tokenizer, text: str) -> list[int]:
    return tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids


@given(text=TEXTS, size=st.integers(1, 50))
def test_pieces_are_the_text(text: str, size: int):
    assert "".join(text_chunks(text, size)) == text


@pytest.mark.parametrize("kind", ["byte", "bpe", "word"])
@settings(max_examples=300)
@given(text=TEXTS, size=st.integers(1, 50))
def test_pieces_tokenize_like_the_whole(bpe, kind: str, text: str, size: int):
    tokenizer = {"byte": BYTES, "bpe": bpe, "word": WORDS}[kind]
    assert [number for piece in text_chunks(text, size) for number in ids(tokenizer, piece)] == ids(tokenizer, text)


@pytest.mark.parametrize("end", ["\n", "\r\n", " \r\n", "\r", " "])
def test_pieces_stay_small_whatever_ends_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str):
    text = f"some words{end}" * 1000
    assert max(map(len, text_chunks(text, 100))) < 130
    monkeypatch.setattr(excerpts, "CHUNK_BYTES", 100)
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    assert max(map(len, read_text(whole_file(path)))) < 130


@pytest.mark.parametrize("kind", ["byte", "bpe", "word"])
@settings(max_examples=200)
@given(text=TEXTS.filter(bool), size=st.integers(1, 50), search=st.integers(5, 20))
def test_parts_of_a_file_tokenize_like_the_whole(
    bpe, tmp_path_factory: pytest.TempPathFactory, kind: str, text: str, size: int, search: int
):
    tokenizer = {"byte": BYTES, "bpe": bpe, "word": WORDS}[kind]
    path = tmp_path_factory.getbasetemp() / "parts.txt"
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(excerpts, "SEARCH_BYTES", search)
        parts = list(cut_at_words(whole_file(path), size))
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == len(text.encode())
    assert min(map(len, parts[:-1]), default=size) >= size
    texts = ["".join(read_text(part)) for part in parts]
    assert [number for part in texts for number in ids(tokenizer, part)] == ids(tokenizer, text)
    assert sum(len(part.split()) for part in texts) == len(text.split())


def test_lines_as_pieces_would_not(bpe):
    """The test above can fail: cutting after line ends changes the tokens."""
    text = "a\n\nb\n\n\nc"
    assert [number for line in text.splitlines(keepends=True) for number in ids(bpe, line)] != ids(bpe, text)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_files_are_read_whole_whatever_the_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int):
    monkeypatch.setattr(excerpts, "CHUNK_BYTES", size)
    text = "".join(LINES) * 3
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    assert "".join(read_text(whole_file(path))) == text
    assert b"".join(read_bytes(Excerpt(path, "a", 5, 50))) == text.encode()[5:50]


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"good text\n\xff\xfe", "not UTF-8 text: byte 10 cannot"),
        ("é".encode() * 5 + b"\xe9 latin", "not UTF-8 text: byte 10 cannot"),
        ("é".encode() * 5 + b"\xe2\x98", "not UTF-8 text: byte 10 cannot"),
        (b"0123456789\0", "is binary: byte 10 is NUL"),
    ],
)
def test_bytes_that_are_no_text_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, content: bytes, message: str
):
    monkeypatch.setattr(excerpts, "CHUNK_BYTES", size)
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"bad\.txt .*{message}"):
        list(read_text(whole_file(path)))


def test_files_that_cannot_be_used(tmp_path: Path):
    (tmp_path / "empty.txt").touch()
    for path, message in (
        (tmp_path / "empty.txt", "is empty"),
        (tmp_path / "no.txt", "does not exist"),
        (tmp_path, "is a folder"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            whole_file(path)
        assert str(path) in caught.value.message


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("abc")
    excerpt = whole_file(path)
    path.write_text("a")
    with pytest.raises(DataError, match="shrank"):
        list(read_bytes(excerpt))


@given(limit=st.integers(1, 40))
def test_the_first_bytes_are_whole_characters(tmp_path_factory: pytest.TempPathFactory, limit: int):
    folder = tmp_path_factory.getbasetemp()
    texts = ["aé☃", "😀b", "漢字kana"]
    files = []
    for number, text in enumerate(texts):
        path = folder / f"limit-{number}.txt"
        path.write_text(text, encoding="utf-8")
        files.append(whole_file(path))
    kept = "".join(text for excerpt in first_bytes(files, limit) for text in read_text(excerpt))
    whole = "".join(texts)
    assert whole.startswith(kept)
    assert len(kept.encode()) <= limit
    if len(kept) < len(whole):
        assert len(whole[: len(kept) + 1].encode()) > limit


def test_no_limit_is_everything(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("abc")
    assert first_bytes([whole_file(path)], None) == [whole_file(path)]


def test_cuts_are_at_lines_or_else_at_characters(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("ab\ncdef\ngh")
    whole = whole_file(path)
    assert [cut_at_line(whole, offset) for offset in range(10)] == [3, 3, 3, 8, 8, 8, 8, 8, 8, 9]
    path.write_text("☃☃☃", encoding="utf-8")
    assert [cut_at_line(whole_file(path), offset) for offset in range(8)] == [0, 3, 3, 3, 6, 6, 6, 9]
    assert np.all(np.diff([cut_at_line(whole, offset) for offset in range(10)]) >= 0)
