"""Token stores of numbers that a test knows, without a corpus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from transnormer.data.arrays import MAX_ENTRIES
from transnormer.data.manifest import FILE_NAME, to_json
from transnormer.data.stored_tokenizer import save_tokenizer
from transnormer.data.token_writer import TokenFiles
from transnormer.files import new_folder, write_text


@contextmanager
def new_store(
    path: Path,
    tokenizer: Any = None,
    meta: dict[str, Any] | None = None,
    vocab_size: int | None = None,
    shard_tokens: int = MAX_ENTRIES,
) -> Iterator[TokenFiles]:
    """What is appended to the files is the store at `path` once the block ends; it needs a tokenizer or a size."""
    vocab_size = vocab_size or len(tokenizer)
    with new_folder(path) as folder, closing(TokenFiles(folder, vocab_size, shard_tokens)) as files:
        yield files
        write_text(folder / FILE_NAME, to_json(files.finish(save_tokenizer(tokenizer, folder), meta or {})))
