"""Ids of text, on the bare `tokenizers` library: worker processes need not load transformers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tokenizers import Tokenizer

from transnormer.data.chunking import text_chunks


def encode_text(tokenizer: Tokenizer, text: str) -> np.ndarray:
    """Ids of a text as int64, nothing added; the name of a special token in the text is text, not that token."""
    if is_byte_level(tokenizer):
        return encode_bytes(text.encode("utf-8"))
    # A batch of small chunks is encoded in parallel.
    encoded = encode_texts(tokenizer, list(text_chunks(text, 2**16)))
    return np.concatenate([np.array(ids, dtype=np.int64) for ids in encoded] or [np.empty(0, np.int64)])


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Ids of each text, nothing added; the name of a special token in a text is text, not that token."""
    before = tokenizer.encode_special_tokens
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()  # a tokenizer may be saved with a length to cut and pad to
    tokenizer.no_padding()
    try:
        return [encoded.ids for encoded in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    finally:
        tokenizer.encode_special_tokens = before


def encode_bytes(data: bytes) -> np.ndarray:
    """Ids of raw bytes, UTF-8 or not, in the byte tokenizer."""
    return np.frombuffer(data, dtype=np.uint8).astype(np.int64)


def is_byte_level(tokenizer: Tokenizer) -> bool:
    """Whether ids 0..255 are the byte values and nothing but special tokens follows."""
    if tokenizer.get_vocab_size(with_added_tokens=False) != 256:
        return False
    return [tokenizer.id_to_token(byte) for byte in range(256)] == byte_alphabet()


def byte_alphabet() -> list[str]:
    """The printable character by which byte-level BPE writes each byte 0..255, as GPT-2 introduced it."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in visible else chr(next(others)) for byte in range(256)]
