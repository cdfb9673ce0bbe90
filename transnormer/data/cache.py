"""Stores prepared on first use, so that a recipe can name a corpus instead of a store."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transnormer.data import example_plan
from transnormer.data.prepare import Source, plan, write_store
from transnormer.data.store import TokenStore
from transnormer.files import disk_errors, lock, partial_prefix, remove_leftovers

log = logging.getLogger(__name__)


def cached_store(
    corpus: str,
    tokenizer: str | None = None,
    vocab_size: int | None = None,
    limit_bytes: int | None = None,
    source: Source = None,
) -> Path:
    """The store of a corpus (arguments as for `prepare`), made when it is not there yet.

    It lies in $TRANSNORMER_CACHE/stores, or ~/.cache/transnormer/stores, under a name that depends on the contents of
    the source files and on every option, so a changed source is a new store. Processes that ask at once wait for one.
    """
    wanted = plan(corpus, tokenizer, vocab_size, limit_bytes, source)
    path = _cached(corpus, wanted.identity(), lambda path: write_store(wanted, path))
    TokenStore.open(path)
    return path


def cached_examples(wanted: example_plan.Plan) -> Path:
    """The example store of a plan, kept as token stores are.

    Its name depends on the contents of the source files, or on the generator's arguments, and on every option.
    """
    task = wanted.form.task

    def write(path: Path) -> None:
        log.warning("preparing %s in %s, which takes a while, but only once", task, path)
        example_plan.write_store(wanted, path)

    return _cached(task.replace("/", "-"), wanted.meta, write)


def _cached(name: str, identity: Any, write: Callable[[Path], None]) -> Path:
    """The folder for a name and whatever decides its contents, as JSON; `write` makes it when it is not there yet."""
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    path = cache_root() / "stores" / f"{name}-{key}"
    if path.exists():  # stores appear whole, by a rename: to read one, the cache need not be writable
        return path
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with lock(path.with_name(f".{path.name}.lock"), wait=True):
        if not path.exists():
            remove_leftovers(path.parent, partial_prefix(path))
            write(path)
    return path


def cache_root() -> Path:
    """Where prepared things go: $TRANSNORMER_CACHE, else ~/.cache/transnormer."""
    return Path(os.environ.get("TRANSNORMER_CACHE") or "~/.cache/transnormer").expanduser()
