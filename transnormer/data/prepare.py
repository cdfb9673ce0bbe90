"""From a corpus to a token store: read, tokenize, count, write; streaming, on all cores, and resumable."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from transnormer.data import text_encoder
from transnormer.data.corpora import Corpus, open_corpus
from transnormer.data.excerpts import first_bytes, read_text, sha256_of
from transnormer.data.manifest import FILE_NAME, to_json
from transnormer.data.prepare_state import State, forget_state, read_state, write_state
from transnormer.data.stored_tokenizer import save_tokenizer, saved_files
from transnormer.data.text_encoder import TextEncoder, batches, count_words
from transnormer.data.token_writer import Counts, TokenFiles
from transnormer.data.tokenizer_choice import TokenizerChoice, choose_tokenizer
from transnormer.data.workers import cores, in_order
from transnormer.errors import ConfigError, DataError, Preempted
from transnormer.files import disk_errors, require_free, resumable_folder, write_text
from transnormer.signals import Terminated, sigterm_raises

log = logging.getLogger(__name__)

Source = str | Path | Sequence[str | Path] | None
Progress = Callable[[str, int, int], None]

HINT = "make room and give the same command again: it goes on where it stopped; or choose another folder"
BYTES_WORTH_A_PROCESS = 2**24  # a process takes a second to start, in which another does about as much
LEARNING_BYTES = 2**28  # of text at most that a bpe is learned from; more needs memory and changes little
SECONDS_BETWEEN_NOTES = 5.0  # how much work a kill may cost


def prepare(
    corpus: str,
    out: str | Path,
    *,
    tokenizer: str | None = None,
    vocab_size: int | None = None,
    limit_bytes: int | None = None,
    source: Source = None,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Writes a token store from a corpus and returns its path. The same input gives the same bytes, every time.

    Killed or stopped, the same call goes on where it was. Memory does not grow with the corpus.

    corpus       see `corpora.open_corpus`; 'text' is your own files
    tokenizer    byte, bpe, word, gpt2:FOLDER, roberta:FOLDER, or a folder with a tokenizer.json; None: the corpus's own
    vocab_size   of a trained bpe (default 8000), or how many words to keep (default all)
    limit_bytes  use only the first so many bytes for training (and for training the tokenizer); valid and test stay
                 whole, so that their numbers can be compared whatever the limit
    source       where the corpus lies: a file or folder; for 'text' one or more patterns
    processes    that tokenize at once (default: one per CPU, fewer for a small corpus); they do not change the result
    progress     called now and then with what is being done, the bytes done and their total
    """
    out = Path(out)
    require_free(out)
    try:
        write_store(plan(corpus, tokenizer, vocab_size, limit_bytes, source), out, processes, progress)
    except (KeyboardInterrupt, Terminated):
        raise Preempted(f"stopped before {out} was finished", "the same command goes on where it stopped") from None
    return out


@dataclass(frozen=True)
class Plan:
    """All that decides the contents of a store; `meta` describes it for the manifest, source files by their hashes."""

    corpus: Corpus
    tokenizer: TokenizerChoice
    meta: dict[str, Any]

    def identity(self) -> Any:
        """What tells it from other plans, as JSON."""
        ranges = {split: [(e.name, e.start, e.stop) for e in parts] for split, parts in self.corpus.splits.items()}
        return [self.meta, ranges]


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
    meta: dict[str, Any] = {
        "corpus": corpus,
        "split_rule": opened.split_rule,
        "limit_bytes": limit_bytes,
        "tokenizer": choice.description(),
        "sources": {name: sha256_of(path) for name, path in sorted(files.items())},
    }
    if choice.kind == "bpe" and (every := _learned_from(opened)) > 1:
        meta["tokenizer"] |= {"learned_from": f"one in {every} parts of {text_encoder.BATCH_BYTES:,} bytes"}
    if opened.stands_in_for:
        meta["stands_in_for"] = opened.stands_in_for
    return Plan(opened, choice, meta)


def write_store(plan: Plan, out: Path, processes: int | None = None, progress: Progress | None = None) -> None:
    """Carries out a plan; where an earlier attempt at the same one was interrupted, it goes on there."""
    corpus = plan.corpus
    total = sum(len(excerpt) for excerpts in corpus.splits.values() for excerpt in excerpts)
    if processes is None:
        processes = max(1, min(cores(), total // BYTES_WORTH_A_PROCESS))
    report = progress or (lambda stage, done, total: None)
    with sigterm_raises(), resumable_folder(out, HINT) as folder, disk_errors(out, hint=HINT):
        state = read_state(folder, plan.identity())
        if state is None:
            state = _begin(plan, folder, processes, report)
        with closing(TokenFiles(folder, state.vocab_size, kept=state.splits)) as files:
            _tokenize(plan, folder, state, files, processes, lambda done: report("tokenizing", done, total))
            meta = dict(plan.meta)
            if differences := _differences(corpus, files.counts):
                meta["differs_from_published"] = differences
                log.warning("%s is not the published one: %s; do not compare results", corpus.name, differences)
            manifest = files.finish(saved_files(folder), meta)
        write_text(folder / FILE_NAME, to_json(manifest), HINT)
        forget_state(folder)


def _begin(plan: Plan, folder: Path, processes: int, report: Progress) -> State:
    """Learns or reads the tokenizer and saves it, so that who goes on need not do it again."""
    corpus = plan.corpus
    train = replace(corpus, splits={"train": corpus.splits["train"]})
    total = sum(map(len, train.splits["train"]))
    every = _learned_from(corpus)

    def texts() -> Iterator[str]:
        done = 0
        for piece in (piece for batch in islice(batches(train), 0, None, every) for piece in batch.pieces):
            yield from read_text(piece.excerpt)
            done += len(piece.excerpt)
            report("learning the tokenizer", done, total // every)

    def word_counts() -> Counter[str]:
        counts: Counter[str] = Counter()
        done = 0
        for words, size in in_order(count_words, batches(train), processes):
            counts.update(words)
            done += size
            report("counting words", done, total)
        return counts

    tokenizer = plan.tokenizer.build(texts, word_counts)
    if corpus.documents and tokenizer.eos_token_id is None:
        raise ConfigError("the tokenizer has no end-of-text token", "set its eos_token and save it again")
    save_tokenizer(tokenizer, folder)
    state = State(plan.identity(), len(tokenizer), tokenizer.eos_token_id if corpus.documents else None)
    write_state(folder, state)
    return state


def _learned_from(corpus: Corpus) -> int:
    """One in how many batches a bpe is learned from: evenly over the text, as much of it as is worth it."""
    return -(-sum(map(len, corpus.splits["train"])) // LEARNING_BYTES)


def _tokenize(
    plan: Plan, folder: Path, state: State, files: TokenFiles, processes: int, report: Callable[[int], None]
) -> None:
    """Appends all batches but those that are done, and notes now and then how far it is."""
    corpus = plan.corpus
    (tokenizer_file,) = (file for file in saved_files(folder) if file.file.endswith("/tokenizer.json"))
    encoder = TextEncoder(
        folder / tokenizer_file.file,
        tokenizer_file.sha256,
        vocab_size=state.vocab_size,
        end_of_document=state.end_of_document,
        raw=corpus.raw,
        line_ends_are_words=corpus.line_ends_are_words,
    )
    done = state.batches
    noted = time.monotonic()
    report(sum(counts.bytes for counts in files.counts.values()))
    with closing(in_order(encoder, islice(batches(corpus), done, None), processes)) as encoded:
        for split, ids, num_bytes, num_words in encoded:
            files.append(split, ids, num_bytes, num_words)
            done += 1
            report(sum(counts.bytes for counts in files.counts.values()))
            if time.monotonic() - noted >= SECONDS_BETWEEN_NOTES:
                files.sync()
                write_state(folder, replace(state, batches=done, splits=dict(files.counts)))
                noted = time.monotonic()
    for split, excerpts in corpus.splits.items():
        if files.counts.get(split, Counts()).tokens < 2:
            raise DataError(f"{excerpts[0].path} gives '{split}' fewer than two tokens", "give more text")


def _differences(corpus: Corpus, counts: dict[str, Counts]) -> dict[str, str]:
    """Per split, how the files at hand differ in size from the published ones."""
    published = (corpus.published_words or {}).items()
    found = {split: counts[split].words if split in counts else 0 for split, _ in published}
    return {split: f"{found[split]:,} of {words:,} words" for split, words in published if found[split] != words}
