"""Streamed text is that of all ids decoded together, whatever the tokenizer and wherever characters are cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transnormer.data.tokenizers import byte_tokenizer, train_bpe, word_tokenizer
from transnormer.generate.detokenize import IncrementalDetokenizer

BYTES = byte_tokenizer()
BPE = train_bpe(["naïve café 漢字かな 🙂🙃 the cat sat on the mat " * 20], vocab_size=300)
WORDS = word_tokenizer(["<s>", "<pad>", "</s>", "<unk>", "<mask>", "the", "cat", "sat", "."])


def stream(tokenizer: Any, ids: list[int], context: list[int] | None = None) -> list[str]:
    decoder = IncrementalDetokenizer(tokenizer, context or [])
    return [*(decoder.push(token) for token in ids), decoder.flush()]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(), st.sampled_from([BYTES, BPE]))
def test_any_text_comes_out_whole(text: str, tokenizer: Any) -> None:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    pieces = stream(tokenizer, ids)
    assert "".join(pieces) == text


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 255)))
def test_any_bytes_come_out_as_decoded_together(ids: list[int]) -> None:
    assert "".join(stream(BYTES, ids)) == bytes(ids).decode("utf-8", errors="replace")


def test_a_character_is_shown_once_it_is_complete_and_not_before() -> None:
    assert stream(BYTES, list("é🙂a".encode())) == ["", "é", "", "", "", "🙂", "a", ""]


def test_an_unfinished_character_is_shown_at_the_end() -> None:
    assert stream(BYTES, list("é".encode())[:1]) == ["", "\ufffd"]


def test_words_keep_the_space_between_them_and_the_prompt() -> None:
    the, cat, sat = WORDS.convert_tokens_to_ids(["the", "cat", "sat"])
    assert stream(WORDS, [cat, sat], context=[the]) == [" cat", " sat", ""]
    assert "".join(stream(WORDS, [cat, WORDS.eos_token_id, sat], context=[the])) == " cat sat"


@pytest.mark.parametrize("tokenizer", [BYTES, BPE], ids=["byte", "bpe"])
def test_the_prompt_is_not_repeated(tokenizer: Any) -> None:
    prompt, rest = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("漢字 ca", "fé"))
    assert "".join(stream(tokenizer, rest, context=prompt)) == "fé"
