"""From a corpus to a token store: read, tokenize, count, write."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from transnormer.data.corpora import Corpus, open_corpus
from transnormer.data.excerpts import Excerpt, first_bytes, read_bytes, read_text, sha256_of
from transnormer.data.token_writer import StoreWriter
from transnormer.data.tokenizer_choice import TokenizerChoice, choose_tokenizer
from transnormer.data.tokenizers import encode_bytes, encode_text
from transnormer.errors import ConfigError, DataError
from transnormer.files import require_free

log = logging.getLogger(__name__)

Source = str | Path | Sequence[str | Path] | None


def prepare(
    corpus: str,
    out: str | Path,
    *,
    tokenizer: str | None = None,
    vocab_size: int | None = None,
    limit_bytes: int | None = None,
    source: Source = None,
) -> Path:
    """Writes a token store from a corpus and returns its path. The same input gives the same bytes, every time.

    corpus       see `corpora.list_corpora`; 'text' is your own files
    tokenizer    byte, bpe, word, gpt2:FOLDER, roberta:FOLDER, or a folder with a tokenizer.json; None: the corpus's own
    vocab_size   of a trained bpe (default 8000), or how many words to keep (default all)
    limit_bytes  use only the first so many bytes for training (and for training the tokenizer); valid and test stay
                 whole, so that their numbers can be compared whatever the limit
    source       where the corpus lies: a file or folder; for 'text' one or more patterns
    """
    out = Path(out)
    require_free(out)
    write_store(plan(corpus, tokenizer, vocab_size, limit_bytes, source), out)
    return out


@dataclass(frozen=True)
class Plan:
    """All that decides the contents of a store; `meta` describes it for the manifest, source files by their hashes."""

    corpus: Corpus
    tokenizer: TokenizerChoice
    meta: dict[str, Any]


def plan(corpus: str, tokenizer: str | None, vocab_size: int | None, limit_bytes: int | None, source: Source) -> Plan:
    """Finds the files and checks the options, without tokenizing anything yet."""
    opened = open_corpus(corpus, source)
    choice = choose_tokenizer(tokenizer or opened.tokenizer, vocab_size)
    if opened.raw and choice.kind != "byte":
        raise ConfigError(f"the corpus '{corpus}' is raw bytes and takes no '{choice.kind}' tokenizer", "use 'byte'")
    if limit_bytes is not None:
        train = first_bytes(opened.splits["train"], limit_bytes)
        if not train:
            raise ConfigError(f"limit_bytes {limit_bytes} leaves no text to train on", "use e.g. 1000000")
        opened = replace(opened, splits={**opened.splits, "train": train})
    files = {excerpt.name: excerpt.path for excerpts in opened.splits.values() for excerpt in excerpts}
    meta = {
        "corpus": corpus,
        "split_rule": opened.split_rule,
        "limit_bytes": limit_bytes,
        "tokenizer": choice.description(),
        "sources": {name: sha256_of(path) for name, path in sorted(files.items())},
    }
    if opened.stands_in_for:
        meta["stands_in_for"] = opened.stands_in_for
    return Plan(opened, choice, meta)


def write_store(plan: Plan, out: Path) -> None:
    """Carries out a plan."""
    corpus = plan.corpus
    tokenizer = plan.tokenizer.build(lambda: (text for part in corpus.splits["train"] for text in read_text(part)))
    if corpus.documents and tokenizer.eos_token_id is None:
        raise ConfigError("the tokenizer has no end-of-text token", "set its eos_token and save it again")
    with StoreWriter(out, tokenizer=tokenizer, meta=plan.meta) as writer:
        for split, excerpts in corpus.splits.items():
            for excerpt in excerpts:
                for ids, num_bytes, num_words in _encode(corpus, excerpt, tokenizer):
                    writer.append(split, ids, num_bytes, num_words)
                if corpus.documents:
                    writer.append(split, np.array([tokenizer.eos_token_id]))
            if writer.tokens(split) < 2:
                raise DataError(f"{excerpts[0].path} gives '{split}' fewer than two tokens", "give more text")
        if differences := _differences(corpus, writer):
            writer.meta["differs_from_published"] = differences
            log.warning("%s is not the published one: %s; do not compare results", corpus.name, differences)


def _encode(corpus: Corpus, excerpt: Excerpt, tokenizer: Any) -> Iterator[tuple[np.ndarray, int, int]]:
    """(ids, bytes, words) of each piece of an excerpt."""
    if corpus.raw:
        inside_word = False
        for data in read_bytes(excerpt):
            # A word that runs on from the piece before has been counted there.
            continues = inside_word and not data[:1].isspace()
            inside_word = not data[-1:].isspace()
            yield encode_bytes(data), len(data), len(data.split()) - continues
        return
    for text in read_text(excerpt):
        words = len(text.split()) + (text.count("\n") if corpus.line_ends_are_words else 0)
        yield encode_text(tokenizer, text), len(text.encode("utf-8")), words


def _differences(corpus: Corpus, writer: StoreWriter) -> dict[str, str]:
    """Per split, how the files at hand differ in size from the published ones."""
    published = (corpus.published_words or {}).items()
    found = {split: writer.words(split) for split, _ in published}
    return {split: f"{found[split]:,} of {words:,} words" for split, words in published if found[split] != words}
