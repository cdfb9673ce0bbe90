"""Tokenizers: bytes, byte-level BPE, words. All are Hugging Face fast tokenizers, so AutoTokenizer loads them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from transnormer.data import encoding
from transnormer.errors import ConfigError, DataError
from transnormer.files import require_small

PAD, EOS, MASK = "<pad>", "<eos>", "<mask>"
SMALLEST_BPE = 256 + 3


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Ids 0..255 are the byte values of the UTF-8 text; then <pad> 256, <eos> 257, <mask> 258."""
    alphabet = encoding.byte_alphabet()
    tokenizer = Tokenizer(models.BPE(vocab={char: byte for byte, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _wrap(tokenizer, [PAD, EOS, MASK], pad_token=PAD, eos_token=EOS, mask_token=MASK)


def train_bpe(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE learned from texts: 256 bytes, the merges, then <pad>, <eos>, <mask> as the last three ids.

    A short text has fewer merges to offer than asked for; the vocabulary is then smaller.
    """
    if vocab_size < SMALLEST_BPE:
        raise ConfigError(
            f"vocab_size {vocab_size} is too small for byte-level BPE", f"use {SMALLEST_BPE} or more, e.g. 8000"
        )
    tokenizer = _byte_level_bpe(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 3,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _wrap(tokenizer, [PAD, EOS, MASK], pad_token=PAD, eos_token=EOS, mask_token=MASK)


def word_vocabulary(counts: Counter[str], vocab_size: int | None = None) -> list[str]:
    """The words of a corpus in fairseq's order: <s> <pad> </s> <unk>, then by falling count, filled up to 8 * n.

    Equal counts go in alphabetical order. The fill begins with <mask>, for masked language models. The 267,735 distinct
    words of WikiText-103, </s> and <unk> among them, thus become the 267,744 of the paper. `vocab_size` keeps only the
    most frequent words, the others become <unk>.
    """
    specials = ["<s>", PAD, "</s>", "<unk>"]
    by_count = sorted((-count, word) for word, count in counts.items() if word not in (*specials, MASK))
    words = [word for _, word in by_count]
    if vocab_size is not None:
        if vocab_size <= len(specials) + 1:
            raise ConfigError(f"vocab_size {vocab_size} leaves no room for words", "use e.g. 30000")
        words = words[: vocab_size - len(specials) - 1]
    vocabulary = [*specials, *words, MASK]
    wanted = vocab_size or -(-len(vocabulary) // 8) * 8
    return vocabulary + [f"<unused{i}>" for i in range(wanted - len(vocabulary))]


def word_tokenizer(vocab: Sequence[str]) -> PreTrainedTokenizerFast:
    """One id per whitespace-separated word and </s> for each line end; vocab must hold <s> <pad> </s> <unk> <mask>."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocab)}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace("\n", " </s> ")
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"bos_token": "<s>", "pad_token": PAD, "eos_token": "</s>", "unk_token": "<unk>", "mask_token": MASK}
    return _wrap(tokenizer, list(names.values()), **names)


def gpt2_bpe(vocab_json: str | Path, merges_txt: str | Path) -> PreTrainedTokenizerFast:
    """GPT-2's BPE from its two public files: 50,257 ids, <|endoftext|> ends a document."""
    tokenizer = _byte_level_bpe(_read_bpe(Path(vocab_json), Path(merges_txt)))
    end = "<|endoftext|>"
    return _wrap(tokenizer, [end], bos_token=end, eos_token=end, unk_token=end)


def roberta_bpe(vocab_json: str | Path, merges_txt: str | Path) -> PreTrainedTokenizerFast:
    """GPT-2's BPE and the tokens a masked language model needs: 50,265 ids, as many as RoBERTa has.

    GPT-2's own ids stay as they are; <s> <pad> </s> <unk>, three unused ones and <mask> follow. Texts become
    <s> text </s>, pairs <s> text </s></s> text </s>.
    """
    tokenizer = _byte_level_bpe(_read_bpe(Path(vocab_json), Path(merges_txt)))
    added = ["<|endoftext|>", "<s>", PAD, "</s>", "<unk>", "<unused0>", "<unused1>", "<unused2>", MASK]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in added])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")],
    )
    names = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>"}
    return _wrap(tokenizer, added, pad_token=PAD, unk_token="<unk>", mask_token=MASK, **names)


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerFast:
    """A saved tokenizer: the `tokenizer` folder of a store, a model folder, or any folder with a tokenizer.json."""
    folder = Path(folder)
    if not (folder / "tokenizer.json").is_file():
        raise DataError(f"{folder} holds no tokenizer.json", "point to a folder that a tokenizer was saved to")
    require_small(*folder.glob("*.json"))
    try:
        return local_tokenizer(folder)
    # A broken file surfaces as whatever the line that trips over it raises, `tokenizers`' bare Exception included.
    except Exception as problem:
        hint = "save or copy it again; code that a folder brings along is never run"
        raise DataError(f"{folder} holds a broken tokenizer: {problem}", hint) from problem


def local_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a folder by AutoTokenizer: nothing is fetched, and no code of the folder is run.

    transformers notes both how it was asked and that the folder is one of this machine, and would save that with it.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    for passing in ("local_files_only", "is_local"):
        tokenizer.init_kwargs.pop(passing, None)
    return tokenizer


def text_start(tokenizer: PreTrainedTokenizerFast) -> int | None:
    """The token before a text that nothing stands before: the one that the tokenizer puts there, or that ends texts.

    A bos_token that is not put there may be in no text at all, as <s> of word vocabularies is.
    """
    own = tokenizer("")["input_ids"][:1]
    return next((token for token in (*own, tokenizer.eos_token_id, tokenizer.bos_token_id) if token is not None), None)


def encode_text(tokenizer: PreTrainedTokenizerFast, text: str) -> np.ndarray:
    """See `encoding.encode_text`."""
    return encoding.encode_text(tokenizer.backend_tokenizer, text)


def encode_texts(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[list[int]]:
    """See `encoding.encode_texts`."""
    return encoding.encode_texts(tokenizer.backend_tokenizer, texts)


def writes_bytes(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether `bytes_of_tokens` knows what its tokens write."""
    backend = tokenizer.backend_tokenizer
    return isinstance(backend.decoder, decoders.ByteLevel) or isinstance(backend.model, models.WordLevel)


def bytes_of_tokens(tokenizer: PreTrainedTokenizerFast) -> list[bytes]:
    """What each id writes: a word its name behind a space, a byte-level token its bytes, a special one nothing."""
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    if isinstance(tokenizer.backend_tokenizer.model, models.WordLevel):
        return [b" \n" if token == tokenizer.eos_token else b" " + token.encode() for token in tokens]
    special = set(tokenizer.all_special_tokens)
    byte_of = {char: bytes([byte]) for byte, char in enumerate(encoding.byte_alphabet())}
    return [
        b"" if token in special else b"".join(byte_of.get(char, char.encode()) for char in token) for token in tokens
    ]


def _wrap(tokenizer: Tokenizer, specials: Sequence[str], **names: str) -> PreTrainedTokenizerFast:
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **names)


def _byte_level_bpe(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _read_bpe(vocab_json: Path, merges_txt: Path) -> models.BPE:
    for path in (vocab_json, merges_txt):
        if not path.is_file():
            raise DataError(f"{path} is missing", "GPT-2's BPE is two files, vocab.json and merges.txt")
    try:
        vocab = json.loads(vocab_json.read_text(encoding="utf-8"))
        lines = merges_txt.read_text(encoding="utf-8").splitlines()
        pairs = (line.split(" ") for line in lines if line and not line.startswith("#version"))
        merges = [(left, right) for left, right in pairs]
        return models.BPE(vocab=vocab, merges=merges)
    # `tokenizers` raises a bare Exception for a merge whose parts or result are not in the vocabulary.
    except Exception as problem:
        raise DataError(
            f"{vocab_json} and {merges_txt} are not a byte-level BPE: {problem}", "fetch GPT-2's files again"
        ) from problem
