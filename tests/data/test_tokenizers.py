"""Tokenizers: lossless, reproducible, loadable by transformers alone, deaf to special tokens spelled out in text."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from transnormer.data import encoding
from transnormer.data import tokenizers as tk
from transnormer.errors import ConfigError, DataError
from transnormer.models.loading import load_local_tokenizer

PROSE = "The cat sat on the mat.\n\n  The dog's bone, 1234 of them; naïve café — ☃ 漢字\n\tend <mask> <pad> </s>\n" * 40
UTF8 = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


@pytest.fixture(scope="module")
def bpe():
    return tk.train_bpe([PROSE], 300)


@pytest.fixture(scope="module")
def tiny_gpt2(tmp_path_factory: pytest.TempPathFactory, bpe) -> Path:
    """vocab.json and merges.txt in the public format, of a small vocabulary."""
    folder = tmp_path_factory.mktemp("gpt2")
    model = json.loads(bpe.backend_tokenizer.to_str())["model"]
    vocab = dict(model["vocab"])
    vocab["<|endoftext|>"] = len(vocab)
    (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(merge) for merge in model["merges"])]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


BYTES = tk.byte_tokenizer()


@given(UTF8)
def test_byte_ids_are_byte_values(text: str):
    expected = list(text.encode("utf-8"))
    assert tk.encode_text(BYTES, text).tolist() == expected
    assert BYTES.decode(expected) == text


def test_the_fast_path_for_bytes_equals_the_tokenizer_itself():
    text = PROSE.replace("<mask>", "").replace("<pad>", "")  # which the tokenizer itself would take for the tokens
    assert BYTES.encode(text) == tk.encode_text(BYTES, text).tolist()


def test_byte_special_tokens():
    assert (len(BYTES), BYTES.pad_token_id, BYTES.eos_token_id, BYTES.mask_token_id) == (259, 256, 257, 258)
    assert encoding.encode_bytes(bytes(range(256))).tolist() == list(range(256))


@settings(max_examples=50)
@given(UTF8)
def test_bpe_is_lossless(bpe, text: str):
    assert bpe.decode(tk.encode_text(bpe, text)) == text


def test_bpe_layout(bpe):
    assert len(bpe) == 300
    assert (bpe.pad_token_id, bpe.eos_token_id, bpe.mask_token_id) == (297, 298, 299)
    assert len(tk.encode_text(bpe, PROSE)) < len(PROSE.encode()) / 1.5


def test_bpe_training_is_reproducible(bpe):
    pieces = [PROSE[:300], PROSE[300:]]
    assert tk.train_bpe([PROSE], 300).backend_tokenizer.to_str() == bpe.backend_tokenizer.to_str()
    first, second = (tk.train_bpe(iter(pieces), 290).backend_tokenizer.to_str() for _ in range(2))
    assert first == second


def test_a_short_text_gives_a_smaller_vocabulary():
    small = tk.train_bpe(["ab ab ab"], 8000)
    assert 259 < len(small) < 270
    assert tk.encode_text(small, "ab").max() < len(small)


def test_a_bpe_vocabulary_must_hold_the_bytes():
    with pytest.raises(ConfigError, match="vocab_size 100 is too small"):
        tk.train_bpe([PROSE], 100)


def test_special_tokens_spelled_in_text_are_text(bpe, tiny_gpt2: Path):
    gpt2 = tk.gpt2_bpe(tiny_gpt2 / "vocab.json", tiny_gpt2 / "merges.txt")
    for tokenizer in (BYTES, bpe, gpt2):
        text = "<eos><pad><mask><|endoftext|>"
        ids = tk.encode_text(tokenizer, text)
        assert not set(ids.tolist()) & set(tokenizer.all_special_ids)
        assert tokenizer.decode(ids) == text
        assert tokenizer.backend_tokenizer.encode_special_tokens is False  # encode_text changed nothing for others


def test_word_vocabulary_is_in_fairseq_order():
    counts = Counter({"the": 5, "b": 2, "a": 2, "<unk>": 9, "rare": 1})
    assert tk.word_vocabulary(counts) == [
        "<s>", "<pad>", "</s>", "<unk>", "the", "a", "b", "rare", "<mask>", *(f"<unused{i}>" for i in range(7)),
    ]  # fmt: skip
    assert tk.word_vocabulary(counts, 7) == ["<s>", "<pad>", "</s>", "<unk>", "the", "a", "<mask>"]
    with pytest.raises(ConfigError, match="leaves no room"):
        tk.word_vocabulary(counts, 5)


def test_the_size_of_the_papers_vocabulary():
    """WikiText-103 has 267,735 distinct words with </s> and <unk>; fairseq, and so the paper, makes that 267,744."""
    counts = Counter({f"word{i}": 1 for i in range(267_733)} | {"<unk>": 3})
    assert len(tk.word_vocabulary(counts)) == 267_744


def test_words_and_line_ends():
    words = tk.word_tokenizer(tk.word_vocabulary(Counter(["a", "b", "b"])))
    text = " b a \n \nstrange <unk> b\n"
    assert words.convert_ids_to_tokens(tk.encode_text(words, text)) == [
        "b", "a", "</s>", "</s>", "<unk>", "<unk>", "b", "</s>",
    ]  # fmt: skip
    assert words.encode(text) == tk.encode_text(words, text).tolist()
    assert (words.bos_token_id, words.pad_token_id, words.eos_token_id, words.unk_token_id) == (0, 1, 2, 3)


def test_gpt2_and_roberta_from_local_files(tiny_gpt2: Path, bpe):
    files = tiny_gpt2 / "vocab.json", tiny_gpt2 / "merges.txt"
    gpt2, roberta = tk.gpt2_bpe(*files), tk.roberta_bpe(*files)
    assert gpt2.eos_token_id == len(gpt2) - 1 == 297
    assert len(roberta) == len(gpt2) + 8
    assert roberta.mask_token_id == len(roberta) - 1
    text = PROSE.replace("<mask> <pad> </s>", "")
    assert tk.encode_text(gpt2, text).tolist() == tk.encode_text(bpe, text).tolist()
    ids = tk.encode_text(roberta, text).tolist()
    assert ids == tk.encode_text(gpt2, text).tolist()
    assert roberta.encode(text) == [roberta.cls_token_id, *ids, roberta.sep_token_id]


@pytest.mark.parametrize(
    ("vocab", "merges", "message"),
    [
        ("{", "#version: 0.2\n", "vocab.json and .*merges.txt are not a byte-level BPE"),
        ('{"a": 0}', "a b\n", "not a byte-level BPE"),
        ('{"a": 0, "b": 1, "ab": 2}', "a b c\n", "not a byte-level BPE"),
        (None, "", "vocab.json is missing"),
        ("{}", None, "merges.txt is missing"),
    ],
)
def test_broken_gpt2_files(tmp_path: Path, vocab: str | None, merges: str | None, message: str):
    for name, content in (("vocab.json", vocab), ("merges.txt", merges)):
        if content is not None:
            (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        tk.gpt2_bpe(tmp_path / "vocab.json", tmp_path / "merges.txt")


@pytest.mark.parametrize("kind", ["byte", "bpe", "word", "gpt2", "roberta"])
def test_a_saved_tokenizer_loads_with_transformers_alone(tmp_path: Path, kind: str, bpe, tiny_gpt2: Path):
    files = tiny_gpt2 / "vocab.json", tiny_gpt2 / "merges.txt"
    tokenizer = {
        "byte": lambda: BYTES,
        "bpe": lambda: bpe,
        "word": lambda: tk.word_tokenizer(tk.word_vocabulary(Counter(PROSE.split()))),
        "gpt2": lambda: tk.gpt2_bpe(*files),
        "roberta": lambda: tk.roberta_bpe(*files),
    }[kind]()
    tokenizer.save_pretrained(tmp_path)
    for loaded in (AutoTokenizer.from_pretrained(tmp_path), tk.load_tokenizer(tmp_path)):
        assert len(loaded) == len(tokenizer)
        assert loaded.encode(PROSE) == tokenizer.encode(PROSE)
        assert np.array_equal(tk.encode_text(loaded, PROSE), tk.encode_text(tokenizer, PROSE))
        assert loaded.decode(loaded.encode(PROSE)) == tokenizer.decode(tokenizer.encode(PROSE))
        assert loaded.special_tokens_map == tokenizer.special_tokens_map
        assert encoding.is_byte_level(loaded.backend_tokenizer) == (kind == "byte")


def test_a_tokenizer_that_was_loaded_is_saved_as_it_was(tmp_path: Path):
    """Not with how it was asked for here, which transformers would keep: elsewhere it may be fetched."""
    BYTES.save_pretrained(tmp_path / "first")
    path = tmp_path / "first" / "tokenizer_config.json"
    saved = path.read_text()
    path.write_text(json.dumps(json.loads(saved) | {"local_files_only": True}))  # as some folders have it
    for load in (tk.load_tokenizer, load_local_tokenizer):
        load(tmp_path / "first").save_pretrained(tmp_path / "second")
        assert (tmp_path / "second" / "tokenizer_config.json").read_text() == saved


def test_loading_what_is_no_tokenizer(tmp_path: Path):
    with pytest.raises(DataError, match=r"holds no tokenizer.json"):
        tk.load_tokenizer(tmp_path)
    BYTES.save_pretrained(tmp_path)
    whole = (tmp_path / "tokenizer.json").read_text()
    for broken in ("", "[]", "{}", whole[:500], whole.replace('"BPE"', '"XYZ"')):
        (tmp_path / "tokenizer.json").write_text(broken)
        with pytest.raises(DataError, match="broken tokenizer"):
            tk.load_tokenizer(tmp_path)


def test_the_real_gpt2_vocabulary(real_data):
    folder = real_data("gpt2")
    files = folder / "vocab.json", folder / "merges.txt"
    gpt2, roberta = tk.gpt2_bpe(*files), tk.roberta_bpe(*files)
    assert (len(gpt2), gpt2.eos_token_id) == (50_257, 50_256)
    assert (len(roberta), roberta.mask_token_id) == (50_265, 50_264)
    assert tk.encode_text(gpt2, "Hello world").tolist() == [15496, 995]
    assert gpt2.decode(tk.encode_text(gpt2, PROSE)) == PROSE
