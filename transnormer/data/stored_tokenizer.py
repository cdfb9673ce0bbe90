"""The tokenizer that a store was made with, saved in a folder of its own inside it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from transnormer.data.manifest import TokenizerFile
from transnormer.files import sha256

FOLDER = "tokenizer"


def save_tokenizer(tokenizer: Any, store: Path) -> list[TokenizerFile]:
    """Write it, if there is one, and describe its files for the manifest."""
    if tokenizer is None:
        return []
    tokenizer.save_pretrained(store / FOLDER)
    return saved_files(store)


def saved_files(store: Path) -> list[TokenizerFile]:
    """The files of the tokenizer that was saved in a store."""
    return [
        TokenizerFile(file=f"{FOLDER}/{path.name}", size=path.stat().st_size, sha256=sha256(path))
        for path in sorted((store / FOLDER).iterdir())
    ]


def tokenizer_in(store: Path, files: list[TokenizerFile]) -> Path | None:
    """Its folder, in a store whose manifest names these files of it."""
    return store / FOLDER if files else None


def copy_tokenizer(saved: Path | None, folder: str | Path) -> None:
    """Put the files of a saved tokenizer into a model folder; nothing where a store has none."""
    for file in sorted(saved.iterdir()) if saved else ():
        shutil.copyfile(file, Path(folder) / file.name)
