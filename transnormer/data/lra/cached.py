"""Example stores prepared on first use, so that a recipe needs no store to name."""

from __future__ import annotations

import logging
from pathlib import Path

from transnormer.data.cache import cached
from transnormer.data.lra.prepare import plan, write_store

log = logging.getLogger(__name__)


def cached_examples(task: str, source: str | Path | None = None, limit: int | None = None) -> Path:
    """The store of a task (arguments as for `prepare`), made when it is not there yet.

    It lies beside the token stores (see `cache.cached_store`), under a name that depends on the contents of the source
    files, or on the generator's arguments, and on every option.
    """
    wanted = plan(task, source, limit=limit)

    def write(path: Path) -> None:
        log.warning("preparing %s in %s, which takes a while, but only once", task, path)
        write_store(wanted, path)

    return cached(task.replace("/", "-"), wanted.meta, write)
