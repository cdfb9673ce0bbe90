"""The tokenizer a user asks for, by name or folder, and building it for a corpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transnormer.config.schema import BUILT_TOKENIZERS, TOKENIZERS_FROM_FOLDER
from transnormer.data import tokenizers
from transnormer.data.excerpts import sha256_of
from transnormer.errors import ConfigError, DataError, did_you_mean

DEFAULT_BPE_VOCABULARY = 8000


@dataclass(frozen=True)
class TokenizerChoice:
    """A checked choice: its kind, the size to train (bpe, word) and the files to read (gpt2, roberta, saved)."""

    kind: str
    vocab_size: int | None = None
    files: dict[str, Path] = field(default_factory=dict)

    def build(
        self, training_texts: Callable[[], Iterable[str]], word_counts: Callable[[], Counter[str]] = Counter
    ) -> Any:
        """The tokenizer, learned from the texts, or from how often each word is in them, where its kind is learned."""
        if self.kind == "byte":
            return tokenizers.byte_tokenizer()
        if self.kind == "bpe":
            return tokenizers.train_bpe(training_texts(), self.vocab_size or DEFAULT_BPE_VOCABULARY)
        if self.kind == "word":
            return tokenizers.word_tokenizer(tokenizers.word_vocabulary(word_counts(), self.vocab_size))
        if self.kind == "saved":
            return tokenizers.load_tokenizer(self.files["tokenizer.json"].parent)
        load = tokenizers.gpt2_bpe if self.kind == "gpt2" else tokenizers.roberta_bpe
        return load(self.files["vocab.json"], self.files["merges.txt"])

    def description(self) -> dict[str, Any]:
        """For the manifest: files by their hashes, since a path means nothing on another machine."""
        files = {name: sha256_of(path) for name, path in self.files.items()}
        return {"kind": self.kind, "vocab_size": self.vocab_size, "files": files}


def choose_tokenizer(name: str, vocab_size: int | None = None) -> TokenizerChoice:
    """Checks 'byte', 'bpe', 'word', 'gpt2:FOLDER', 'roberta:FOLDER' or the folder of a saved tokenizer."""
    kind, _, folder = name.partition(":")
    if name in BUILT_TOKENIZERS:
        choice = TokenizerChoice(name, vocab_size if name != "byte" else None)
    elif kind in TOKENIZERS_FROM_FOLDER:
        if not folder:
            raise ConfigError(
                f"the tokenizer '{kind}' is read from files", f"use {kind}:FOLDER with vocab.json, merges.txt"
            )
        choice = TokenizerChoice(kind, None, {file: Path(folder, file) for file in ("vocab.json", "merges.txt")})
    elif (Path(name) / "tokenizer.json").is_file():
        choice = TokenizerChoice(
            "saved", None, {file.name: file for file in sorted(Path(name).glob("tokenizer*.json"))}
        )
    else:
        known = [*BUILT_TOKENIZERS, *(f"{kind}:FOLDER" for kind in TOKENIZERS_FROM_FOLDER)]
        raise ConfigError(f"unknown tokenizer '{name}'", did_you_mean(name, known))
    if vocab_size is not None and choice.vocab_size is None:
        raise ConfigError(f"the tokenizer '{name}' has a vocabulary of its own", "leave vocab_size out")
    for path in choice.files.values():
        if not path.is_file():
            raise DataError(f"{path} is missing", f"'{kind}' needs a folder with {' and '.join(choice.files)}")
    return choice
