"""A store in pieces of bounded size, each with its checksum: to send it where large files cannot go, and back.

The folder of pieces has piece-00000, piece-00001, ... (with .xz behind it where compressed) and pieces.json:

    {
      "format": "transnormer-store-pieces", "version": 1,
      "digest": "9f0c...",                                    of the store, as its manifest has it
      "files": [{"file": "train-00000.bin",                   in the store
                 "pieces": [{"file": "piece-00000", "size": 50000000, "sha256": "..."}]}]     in reading order
    }
"""

from __future__ import annotations

import hashlib
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from transnormer.data.manifest import PIECES_FILE, FileName, Sha256, Strict
from transnormer.data.open_store import open_store
from transnormer.errors import ConfigError, DataError
from transnormer.files import disk_errors, new_folder, read_errors, require_free, sha256, write_text

SMALLEST = 10_000
_HINT = "make room, or choose another --out"


class Piece(Strict):
    """One file of the folder of pieces, as it lies there."""

    file: FileName
    size: int = Field(ge=0)
    sha256: Sha256


class PiecesOfFile(Strict):
    """One file of the store, and what it is put together from."""

    file: FileName
    pieces: list[Piece]


class Pieces(Strict):
    """pieces.json."""

    format: Literal["transnormer-store-pieces"] = "transnormer-store-pieces"
    version: Literal[1] = 1
    digest: Sha256
    files: list[PiecesOfFile]


def split_store(store: Path, out: Path, size: int, compress: bool = False) -> int:
    """Write a store, every byte of which is checked before, in pieces of at most `size` bytes; returns their number."""
    if size < SMALLEST:
        raise ConfigError(f"pieces of {size:,} bytes are too small", f"use at least {SMALLEST:,}, e.g. 50MB")
    require_free(out)
    opened = open_store(store)
    opened.verify()
    # What cannot be compressed grows, by three bytes in 64 KiB and a header.
    raw_size = size - size // 1000 - 200 if compress else size
    files, count = [], 0
    with new_folder(out, _HINT) as partial, disk_errors(out, hint=_HINT):
        for path in sorted(path for path in store.rglob("*") if path.is_file()):
            pieces = []
            for data in _chunks(path, raw_size):
                name = f"piece-{count:05d}{'.xz' if compress else ''}"
                content = lzma.compress(data) if compress else data
                (partial / name).write_bytes(content)
                pieces.append(Piece(file=name, size=len(content), sha256=hashlib.sha256(content).hexdigest()))
                count += 1
            files.append(PiecesOfFile(file=path.relative_to(store).as_posix(), pieces=pieces))
        listing = Pieces(digest=opened.digest, files=files)
        write_text(partial / PIECES_FILE, listing.model_dump_json(indent=1) + "\n", _HINT)
    return count


def check_pieces(folder: Path) -> int:
    """Read every piece; a DataError names all that are missing or damaged. Returns how many there are."""
    pieces = [piece for file in _read_listing(folder).files for piece in file.pieces]
    wrong = {piece.file: problem for piece in pieces if (problem := _problem(folder, piece))}
    if wrong:
        named = ", ".join(f"{name} ({problem})" for name, problem in wrong.items())
        raise DataError(f"{folder}: {len(wrong)} of {len(pieces)} pieces are damaged: {named}", "fetch these again")
    return len(pieces)


def join_pieces(folder: Path, out: Path) -> None:
    """Put a store together again; it appears once every byte of it is what the manifest says."""
    require_free(out)
    check_pieces(folder)
    listing = _read_listing(folder)
    with new_folder(out, _HINT) as partial:
        for file in listing.files:
            target = partial / file.file
            with disk_errors(out, hint=_HINT):
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as joined:
                    for piece in file.pieces:
                        joined.write(_content(folder / piece.file))
        store = open_store(partial)
        store.verify()
        if store.digest != listing.digest:
            raise DataError(f"{folder} holds the pieces of another store than {PIECES_FILE} says", "fetch them again")


def _chunks(path: Path, size: int) -> Iterator[bytes]:
    with read_errors(path), path.open("rb") as file:
        while data := file.read(size):
            yield data


def _content(path: Path) -> bytes:
    data = path.read_bytes()
    return lzma.decompress(data) if path.suffix == ".xz" else data


def _problem(folder: Path, piece: Piece) -> str | None:
    path = folder / piece.file
    if not path.is_file():
        return "missing"
    if path.stat().st_size != piece.size:
        return f"{path.stat().st_size:,} bytes, not {piece.size:,}"
    with read_errors(path):
        return None if sha256(path) == piece.sha256 else "another sha256 than recorded"


def _read_listing(folder: Path) -> Pieces:
    path = folder / PIECES_FILE
    try:
        return Pieces.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        hint = "`transnormer data split STORE --out DIR` writes it"
        raise DataError(f"{folder} holds no pieces of a store: it has no {PIECES_FILE}", hint) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the JSON"
        raise DataError(f"{path}: {where}: {first['msg']}", "fetch it again") from None
