"""The corpora by name: which bytes of which files make up train, valid and test."""

from __future__ import annotations

import hashlib
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from transnormer.data.excerpts import Excerpt, whole_file
from transnormer.errors import ConfigError, DataError, did_you_mean

TITLE = re.compile(rb" = [^=].* = \r?\n")
WITH_TITLES = ("wikitext103", "wikitext2", "enwiki")  # whose articles begin with such a line


@dataclass(frozen=True)
class Corpus:
    """A text in splits and how it is to be read."""

    name: str
    splits: dict[str, list[Excerpt]]
    split_rule: str
    tokenizer: str = "byte"  # the one used when none is asked for
    raw: bool = False  # bytes that need not be UTF-8: only the byte tokenizer can read them
    documents: bool = True  # an end-of-document token follows each excerpt
    line_ends_are_words: bool = False  # as WikiText counts
    published_words: dict[str, int] | None = None  # of the published splits, to notice a partial copy
    stands_in_for: str | None = None  # a published corpus that it resembles and whose results it must not be set beside


def open_corpus(name: str, source: str | Path | Sequence[str | Path] | None = None) -> Corpus:
    """A corpus by name; `source` is its file or folder, for 'text' one pattern or several, for 'python' nothing."""
    if name not in _loaders():
        raise ConfigError(f"unknown corpus '{name}'", did_you_mean(name, _loaders()))
    sources = [source] if isinstance(source, str | Path) else list(source or [])
    return _loaders()[name]([str(each) for each in sources])


# Where the files of a corpus are to be had: nothing is downloaded.
ORIGINS = {
    "wikitext103": "WikiText-103 (Merity et al. 2017) is wikitext-103-v1.zip of the Hugging Face data set "
    "Salesforce/wikitext and its mirrors, sha256 242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590: "
    "wiki.train.tokens, wiki.valid.tokens, wiki.test.tokens; for tokenizers of parts of words wikitext-103-raw-v1.zip, "
    "sha256 91c00ae287f0d699e18605c84afc9e45c192bc6b7797ff8837e5474655a33794: wiki.train.raw and so on",
    "wikitext2": "WikiText-2 (Merity et al. 2017) is wikitext-2-v1.zip of the Hugging Face data set "
    "Salesforce/wikitext and its mirrors, sha256 92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c: "
    "wiki.train.tokens, wiki.valid.tokens, wiki.test.tokens",
    "enwik8": "enwik8 is the one file of http://mattmahoney.net/dc/enwik8.zip, 100,000,000 bytes, md5 "
    "a1fa5ffddb56f4953e226637dabbb36a",
    "enwiki": "enwiki is a folder with train.txt and valid.txt: articles of the English Wikipedia as plain text, a "
    "title line ' = Title = ' before each; it is not published, any such text will do",
}


def corpus_names() -> list[str]:
    """All of them."""
    return list(_loaders())


def _loaders() -> dict[str, Callable[[list[str]], Corpus]]:
    from transnormer.data.text_files import text_files  # it builds on Corpus

    return {
        "python": python_sources,
        "text": text_files,
        "wikitext103": partial(wikitext, name="wikitext103", train_words=103_227_021),
        "wikitext2": partial(wikitext, name="wikitext2", train_words=2_088_628),
        "enwik8": enwik8,
        "enwiki": enwiki,
    }


def python_sources(sources: list[str]) -> Corpus:
    """The running Python's standard library: text that every machine has. A file's split depends on its path alone."""
    if sources:
        raise ConfigError("the corpus 'python' takes no source", "leave it out, or use the corpus 'text'")
    root = Path(sysconfig.get_path("stdlib"))
    skipped = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip", "encodings", "pydoc_data"}
    skipped |= {"site-packages", "dist-packages", "__pycache__"}
    splits: dict[str, list[Excerpt]] = {"train": [], "valid": [], "test": []}
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        name = path.relative_to(root)
        # _sysconfigdata_* describes the machine that Python was built on; an empty __init__.py says nothing.
        if skipped.intersection(name.parts) or name.name.startswith("_sysconfigdata") or not path.stat().st_size:
            continue
        split = {0: "valid", 1: "test"}.get(name_hash(name.as_posix()) % 20, "train")
        splits[split].append(whole_file(path, name.as_posix()))
    if not all(splits.values()):
        hint = "install it (e.g. apt install libpython3-stdlib), or use the corpus 'text' with files of your own"
        raise DataError(f"there are no sources of Python's standard library in {root}", hint)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    rule = f"standard library of Python {version}; by sha256 of a file's path 1/20 valid, 1/20 test"
    return Corpus("python", splits, rule)


def wikitext(sources: list[str], name: str, train_words: int) -> Corpus:
    """WikiText from its folder of wiki.{train,valid,test}.tokens (or .raw); the test split may be absent."""
    folder = _one_source(sources, name, f"path/to/{name}")
    suffix = "raw" if (folder / "wiki.train.raw").exists() and not (folder / "wiki.train.tokens").exists() else "tokens"
    files = {split: folder / f"wiki.{split}.{suffix}" for split in ("train", "valid", "test")}
    for split in ("train", "valid"):
        if not files[split].is_file():
            raise DataError(f"{files[split]} is missing", f"the source is the unpacked folder; {ORIGINS[name]}")
    return Corpus(
        name,
        {split: [whole_file(path)] for split, path in files.items() if path.is_file()},
        "the published files",
        tokenizer="word",
        documents=False,
        line_ends_are_words=True,
        published_words={"train": train_words, "valid": 217_646, "test": 245_569} if suffix == "tokens" else None,
    )


def enwik8(sources: list[str]) -> Corpus:
    """The first 10^8 bytes of an English Wikipedia dump, as raw bytes: 90 MB train, 5 MB valid, 5 MB test."""
    source = _one_source(sources, "enwik8", "path/to/enwik8")
    path = source / "enwik8" if source.is_dir() else source
    whole = whole_file(path)
    if len(whole) != 100_000_000:
        raise DataError(f"{path} has {len(whole):,} bytes; enwik8 has exactly 100,000,000", ORIGINS["enwik8"])
    bounds = {"train": (0, 90_000_000), "valid": (90_000_000, 95_000_000), "test": (95_000_000, 100_000_000)}
    splits = {split: [replace(whole, start=start, stop=stop)] for split, (start, stop) in bounds.items()}
    return Corpus("enwik8", splits, "first 90, next 5, last 5 million bytes", raw=True, documents=False)


def enwiki(sources: list[str]) -> Corpus:
    """English Wikipedia from a folder of train.txt and valid.txt; the last articles of train.txt are the test split."""
    folder = _one_source(sources, "enwiki", "path/to/enwiki")
    files = {split: folder / f"{split}.txt" for split in ("train", "valid")}
    for path in files.values():
        if not path.is_file():
            raise DataError(f"{path} is missing", f"the source is the folder; {ORIGINS['enwiki']}")
    whole = whole_file(files["train"])
    last = list(_articles(whole, len(whole) - len(whole) // 100))[:1] or list(_articles(whole, 0))[1:][-1:]
    if not last:
        raise DataError(
            f"{whole.path} has no two articles, and the last of them are the test split",
            "give more, each after a line with its title, ' = Title = '",
        )
    splits = {
        "train": [replace(whole, stop=last[0])],
        "valid": [whole_file(files["valid"])],
        "test": [replace(whole, start=last[0])],
    }
    rule = "the files; test: the articles that begin in the last 1 % of train.txt (or the last one), left out of train"
    return Corpus("enwiki", splits, rule, tokenizer="gpt2", documents=False, stands_in_for="WikiText-103")


def _articles(whole: Excerpt, offset: int) -> Iterator[int]:
    """Where articles begin at or after an offset; the titles of sections have more equals signs."""
    with whole.path.open("rb") as file:
        file.seek(max(0, offset - 1))
        position = offset - 1 + len(file.readline()) if offset else 0  # the rest of the line that it is in
        for line in file:
            if TITLE.fullmatch(line):
                yield position
            position += len(line)


def name_hash(name: str) -> int:
    """A number that depends on a file's name alone, the same on every machine."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def _one_source(sources: list[str], name: str, example: str) -> Path:
    if len(sources) != 1:
        hint = (
            f"`transnormer data prepare {name} --source {example} --out STORE`, or data.source={example}; "
            + ORIGINS[name]
        )
        raise ConfigError(f"the corpus '{name}' needs one source, got {len(sources)}", hint)
    return Path(sources[0])
