"""manifest.json: what a store holds, readable without this package, and its files held against it.

Of a token store:

    {
      "format": "transnormer-token-store",   always this
      "version": 1,                          of this description
      "digest": "9f0c...",                   sha256 of the manifest itself, with this field empty and without crc32
      "dtype": "uint16",                     of every shard: flat little-endian uint16, or uint32 above 65,536 ids
      "vocab_size": 259,                     every id in every shard is smaller
      "splits": {
        "train": {
          "tokens": 1000, "bytes": 990, "words": 180,     see SplitInfo
          "shards": [{"file": "train-00000.bin", "tokens": 1000, "sha256": "...",        in reading order
                      "crc32": "..."}]                    of each 64 KiB, eight digits; stores from before have none
        }
      },
      "tokenizer": [{"file": "tokenizer/tokenizer.json", "size": 2000, "sha256": "..."}],   may be empty
      "meta": {...}                          where the text came from: corpus, tokenizer, source files and their hashes
    }

There is no date and no machine in it: the same source prepared twice gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from transnormer.data.block_sums import place_of, sums_of
from transnormer.errors import ConfigError, DataError, command
from transnormer.files import read_errors, require_small

FILE_NAME = "manifest.json"
LARGEST = 256 * 2**20  # bytes: with the crc32 of a store of two terabytes
_MOST_SOURCES = 8  # files that a record names with their hashes
PIECES_FILE = "pieces.json"  # what a store that was split into pieces has instead
# What a store of each format holds, for the message that another kind was needed.
CONTENTS = {"transnormer-token-store": "running text", "transnormer-example-store": "labelled examples"}
_IDENTITY = {"for": "digest"}  # the context of a dump for the digest


def _inside_the_store(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.name:
        raise ValueError("must be a path inside the store")
    return name


FileName = Annotated[str, AfterValidator(_inside_the_store)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Strict(BaseModel):
    """Unknown keys and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class AnyManifest(Strict):
    """What the manifests of all kinds of stores begin with."""

    kind: ClassVar[str]

    format: str
    version: Literal[1] = 1
    digest: str = ""

    @abstractmethod
    def check(self) -> str | None:
        """What does not add up, or None."""

    @abstractmethod
    def files(self) -> list[RecordedFile]:
        """All files of the store but the manifest."""


class RecordedFile(NamedTuple):
    """A file as the manifest has it: its path inside the store, its size in bytes, its sha256, sums of its blocks."""

    file: str
    size: int
    sha256: str
    crc32: str = ""


class Shard(Strict):
    """One file of an array: token ids, or other numbers of one width; `tokens` is how many."""

    file: FileName
    tokens: int = Field(ge=0)
    sha256: Sha256
    crc32: str = Field(default="", pattern="^([0-9a-f]{8})*$")

    @model_serializer(mode="wrap")
    def _dump(self, dump: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        """Sums of blocks say where a file was altered, never which file it is."""
        without = "crc32" if not self.crc32 or info.context == _IDENTITY else None
        return {name: value for name, value in dump(self).items() if name != without}


class Split(Strict):
    """One split: its counts (see `store.SplitInfo`) and its shards in reading order."""

    tokens: int = Field(ge=0)
    bytes: int = Field(ge=0)
    words: int = Field(ge=0)
    shards: list[Shard]


class TokenizerFile(Strict):
    """One file of the saved tokenizer."""

    file: FileName
    size: int = Field(ge=0)
    sha256: Sha256


class Manifest(AnyManifest):
    """The whole file."""

    kind: ClassVar[str] = "token store"

    format: Literal["transnormer-token-store"] = "transnormer-token-store"
    dtype: Literal["uint16", "uint32"]
    vocab_size: int = Field(gt=0, le=2**32)
    splits: dict[str, Split]
    tokenizer: list[TokenizerFile]
    meta: dict[str, Any]

    @property
    def numpy_dtype(self) -> np.dtype:
        return np.dtype(self.dtype).newbyteorder("<")

    def check(self) -> str | None:
        for name, split in self.splits.items():
            if sum(shard.tokens for shard in split.shards) != split.tokens:
                return f"splits.{name}.tokens is not the sum of its shards"
        if not isinstance(self.meta.get("tokenizer", {}), dict):
            return f"meta.tokenizer is no object but {self.meta['tokenizer']!r}"
        return None

    def files(self) -> list[RecordedFile]:
        shards = [shard for split in self.splits.values() for shard in split.shards]
        return shard_files(shards, self.numpy_dtype) + tokenizer_files(self.tokenizer)


AnyKind = TypeVar("AnyKind", bound=AnyManifest)


def shard_files(shards: Sequence[Shard], dtype: np.dtype) -> list[RecordedFile]:
    """The files of an array of this dtype."""
    return [RecordedFile(shard.file, shard.tokens * dtype.itemsize, shard.sha256, shard.crc32) for shard in shards]


def tokenizer_files(files: Sequence[TokenizerFile]) -> list[RecordedFile]:
    """Those of a saved tokenizer."""
    return [RecordedFile(file.file, file.size, file.sha256) for file in files]


def dtype_for(vocab_size: int) -> Literal["uint16", "uint32"]:
    """The narrowest dtype that holds every id."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


def digest_of(manifest: AnyManifest) -> str:
    """sha256 of the manifest as compact JSON with sorted keys, an empty digest and no crc32: a store's identity."""
    plain = {**manifest.model_dump(context=_IDENTITY), "digest": ""}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def to_json(manifest: AnyManifest) -> str:
    """The text of manifest.json, its digest filled in."""
    sealed = manifest.model_copy(update={"digest": digest_of(manifest)})
    return json.dumps(sealed.model_dump(), indent=2, ensure_ascii=False) + "\n"


def read_manifest(store: Path, kind: type[AnyKind]) -> AnyKind:
    """Reads a store's manifest and checks it, and the files against it by size; a DataError says what is wrong."""
    path = store / FILE_NAME
    require_small(path, largest=LARGEST)
    try:
        manifest = kind.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        hint = "`transnormer data prepare ... --out STORE` writes one"
        if (store / PIECES_FILE).is_file():
            hint = f"it is in pieces: `{command('data', 'join', store, '--out', 'STORE')}` puts them together"
        problem = f"is not a {kind.kind}: it has no {FILE_NAME}" if store.exists() else "does not exist"
        raise DataError(f"{store} {problem}", hint) from None
    except ValidationError as error:
        first = error.errors()[0]
        if first["loc"] == ("format",) and first["input"] in CONTENTS:
            wanted = CONTENTS[kind.model_fields["format"].default]
            hint = "`transnormer data info STORE` says what a store is for"
            raise ConfigError(f"{store} holds {CONTENTS[first['input']]}, not {wanted}", hint) from None
        where = ".".join(str(part) for part in first["loc"]) or "the JSON"
        raise DataError(f"{path}: {where}: {first['msg']}", prepare_again(store)) from None
    if manifest.digest != digest_of(manifest):
        raise DataError(f"{path} was edited: its digest does not match", prepare_again(store))
    if wrong := manifest.check():
        raise DataError(f"{path}: {wrong}", prepare_again(store))
    _check_sizes(store, manifest.files())
    return manifest


def check_hashes(store: Path, manifest: AnyManifest) -> None:
    """Reads every file of a store; a DataError names all that differ from its manifest."""
    wrong = []
    for recorded in manifest.files():
        path = store / recorded.file
        try:
            _check_sizes(store, [recorded])
            actual, blocks = sums_of(path)
        except OSError as error:
            raise DataError.unreadable(path, error) from error  # nothing is known to be wrong with it
        except DataError as problem:
            wrong.append(problem.message)
            continue
        if actual != recorded.sha256:
            shown = f"{actual[:12]}..., not {recorded.sha256[:12]}... as recorded"
            wrong.append(f"{path} was altered{place_of(blocks, recorded.crc32)}: its sha256 is {shown}")
        elif recorded.crc32 not in ("", blocks):
            wrong.append(f"{store / FILE_NAME} was edited: the crc32 of {recorded.file} do not match")
    if wrong:
        raise DataError("; ".join(wrong), prepare_again(store))


Marks = dict[Path, tuple[int, int]]


def marks_of(store: Path, files: Iterable[RecordedFile]) -> Marks:
    """Size and time of the last change of files, by which it is seen whether somebody writes to them."""
    return {path: _mark(path) for path in (store / recorded.file for recorded in files)}


def require_unchanged(store: Path, marks: Marks) -> None:
    """A DataError names the first file that has been written to, or is gone, since it was marked."""
    for path, mark in marks.items():
        if _mark(path) != mark:
            raise DataError(
                f"{path} was changed while it was read",
                f"`transnormer data verify {store}` says what is wrong; put the old data back, then resume",
            )


def _mark(path: Path) -> tuple[int, int]:
    with read_errors(path):
        status = path.stat()
    return status.st_size, status.st_mtime_ns


def origin_in_brief(meta: dict[str, Any]) -> dict[str, Any]:
    """What a record says of where a store comes from: of many files, the digest of the store has the hashes."""
    return {key: value for key, value in meta.items() if key != "sources" or len(value) <= _MOST_SOURCES}


def prepare_again(store: Path) -> str:
    """The hint for any damage to a store."""
    return f"remove {store} and prepare it again"


def _check_sizes(store: Path, files: Iterable[RecordedFile]) -> None:
    """A DataError names the first file that is missing or has another size."""
    for file, size, *_ in files:
        path = store / file
        if not path.is_file():
            raise DataError(f"{path} is missing", prepare_again(store))
        if path.stat().st_size != size:
            raise DataError(f"{path} has {path.stat().st_size:,} bytes, not {size:,} as recorded", prepare_again(store))
