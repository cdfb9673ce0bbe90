"""Streams of tokens to be scored, and what of the text their targets stand for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transnormer.data.prepare import prepare
from transnormer.data.store import SplitInfo, TokenStore
from transnormer.data.streams import PartOfStream, TextStream, after_first, read_texts
from transnormer.data.tokenizers import byte_tokenizer, encode_text, load_tokenizer, train_bpe
from transnormer.errors import DataError

BPE = train_bpe(["the cat sat on the mat, the cat sat naïve\n"] * 5, 290)
TEXT = st.text(alphabet=" \nthecatï,", min_size=2, max_size=40)


@settings(max_examples=200, deadline=None)
@given(text=TEXT, tokenizer=st.sampled_from([BPE, byte_tokenizer()]))
def test_the_first_token_is_left_out_of_bytes_and_words_to_the_byte(text, tokenizer):
    ids = encode_text(tokenizer, text)
    if len(ids) < 2:
        return
    info = SplitInfo(len(ids), len(text.encode()), len(text.split()))
    rest = after_first(TextStream(ids, info), info, tokenizer)
    alphabet = tokenizer.convert_ids_to_tokens([int(ids[0])])[0]
    left_out = text.encode()[: len(alphabet)]  # byte-level: a character of a token is a byte of the text
    assert rest.tokens == len(ids) - 1
    assert rest.bytes == info.bytes - len(left_out)
    behind = text.encode()[len(left_out) :]
    ended = len(left_out.split()) and (not behind or behind[:1].isspace())
    assert rest.words == info.words - bool(ended)


def test_word_level_stores_count_line_ends_as_words(tmp_path: Path):
    for split in ("train", "valid"):
        (tmp_path / f"wiki.{split}.tokens").write_text(" \n = Title = \n some words \n")
    store = TokenStore.open(prepare("wikitext2", tmp_path / "store", source=tmp_path))
    split = store.split("valid")
    rest = after_first(split, split.info, load_tokenizer(store.tokenizer_path))
    assert split.info.words == split.info.tokens == 8
    assert (rest.tokens, rest.words) == (7, 7)


def test_texts_are_documents_and_everything_in_them_is_predicted(tmp_path: Path):
    texts = ["the cat sat", "a naïve mat\n"]
    files = [tmp_path / f"{number}.txt" for number in range(2)]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    stream = read_texts(files, BPE)
    end = BPE.eos_token_id
    expected = [end, *encode_text(BPE, texts[0]), end, *encode_text(BPE, texts[1])]
    assert stream.ids.tolist() == expected
    assert stream.info == SplitInfo(len(expected), sum(len(text.encode()) for text in texts), 6)
    rest = after_first(stream, stream.info, BPE)
    assert (rest.tokens, rest.bytes, rest.words) == (len(expected) - 1, stream.info.bytes, 6)


def test_a_file_that_cannot_be_scored_is_named(tmp_path: Path):
    (tmp_path / "short.txt").write_text("a")
    (tmp_path / "latin.txt").write_bytes("naïve and long enough".encode("latin1"))
    with pytest.raises(DataError, match=r"short.txt has 1 token, too few to be scored"):
        read_texts([tmp_path / "short.txt"], BPE)
    with pytest.raises(DataError, match=r"latin.txt is not UTF-8 text: byte 2"):
        read_texts([tmp_path / "latin.txt"], BPE)
    with pytest.raises(DataError, match=r"missing.txt does not exist"):
        read_texts([tmp_path / "missing.txt"], BPE)


def test_a_part_of_a_stream_reads_like_one():
    whole = TextStream(np.arange(20), SplitInfo(20, 0, 0))
    part = PartOfStream(whole, 5, 15)
    assert len(part) == 10
    assert part.read(2, 4).tolist() == [7, 8]
