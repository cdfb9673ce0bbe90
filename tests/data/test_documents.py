"""Documents of a token stream: at end-of-text tokens, at Wikipedia's title lines, or one stream."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transnormer.data.documents import Documents, find_documents
from transnormer.data.prepare import prepare
from transnormer.data.store import SplitInfo, TokenStore
from transnormer.data.streams import TextStream
from transnormer.data.tokenizers import (
    byte_tokenizer,
    bytes_of_tokens,
    encode_text,
    load_tokenizer,
    train_bpe,
    word_tokenizer,
)

ARTICLES = " = First one = \n Some text . \n = = A section = = \n More = text = \n\n = 2 <unk> ï = \n And text .\n"


@settings(max_examples=200, deadline=None)
@given(data=st.data(), tokens=st.integers(2, 60))
def test_no_target_is_lost_and_documents_begin_where_the_one_before_ends(data, tokens):
    ends = sorted(data.draw(st.sets(st.integers(0, tokens - 1))))
    documents = Documents(ends).spans(tokens)
    predicted = [t for document in documents for t in range(document.start + 1, document.stop + 1)]
    assert predicted == list(range(1, tokens))
    for document in documents:
        assert document.start in (0, *ends)
        assert not set(ends) & set(range(document.start + 1, document.stop))
    assert sum(map(len, documents)) == tokens - 1


def test_end_of_text_tokens_end_documents_unless_words_are_tokens():
    tokenizer = byte_tokenizer()
    stream = TextStream(np.array([1, 257, 5, 5, 257]), SplitInfo(5, 3, 1))
    found = find_documents(stream, tokenizer)
    assert found.ends == [1, 4]
    assert "end-of-text" in found.rule
    for nothing in (
        find_documents(stream, None),
        find_documents(stream, word_tokenizer(["<s>", "<pad>", "</s>", "<unk>", "<mask>", *map(str, range(300))])),
        find_documents(TextStream(np.arange(5), SplitInfo(5, 5, 1)), tokenizer),
    ):
        assert len(nothing.spans(5)) == 1
        assert nothing.rule == "all of it as one stream"


@pytest.mark.parametrize("kind", ["byte", "bpe", "word"])
def test_articles_begin_with_their_titles(tmp_path: Path, kind: str):
    for split in ("train", "valid"):
        (tmp_path / f"wiki.{split}.tokens").write_text(ARTICLES)
    store = TokenStore.open(prepare("wikitext2", tmp_path / "store", source=tmp_path, tokenizer=kind))
    split, tokenizer = store.split("valid"), load_tokenizer(store.tokenizer_path)
    written = bytes_of_tokens(tokenizer)
    found = find_documents(split, tokenizer, "wikitext2")
    first, second = found.spans(len(split))
    text = b"".join(written[token] for token in split.read(second.start, second.stop + 1))
    assert text.lstrip(b" ").startswith(b"\n = 2 <unk> ")  # the line end before it, and its title
    assert first.start == 0
    assert "article" in found.rule
    assert len(find_documents(split, tokenizer, "text").spans(len(split))) == 1  # no other corpus has such titles


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=" \nabcïab=", min_size=1))
def test_tokens_write_the_bytes_that_they_were_made_of(text):
    for tokenizer in (byte_tokenizer(), BPE):
        written = bytes_of_tokens(tokenizer)
        assert b"".join(written[token] for token in encode_text(tokenizer, text)) == text.encode()
        assert written[tokenizer.eos_token_id] == b""


BPE = train_bpe([ARTICLES] * 3, 290)


@pytest.mark.skipif("TRANSNORMER_DATA" not in os.environ, reason="needs real data: TRANSNORMER_DATA")
def test_the_validation_articles_of_wikitext_103(tmp_path: Path):
    """Sixty, as its authors say."""
    text = Path(os.environ["TRANSNORMER_DATA"], "wikitext-103", "wiki.valid.tokens").read_text()
    tokenizer = byte_tokenizer()
    stream = TextStream(encode_text(tokenizer, text), SplitInfo(0, 0, 0))
    documents = find_documents(stream, tokenizer, "wikitext103").spans(len(stream))
    assert len(documents) - 1 == 60  # behind an empty first line
