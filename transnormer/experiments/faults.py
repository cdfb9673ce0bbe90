"""What is wrong with which jobs, gathered so that a person hears of all of it at once, before anything starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from transnormer.errors import TransNormerError

_NAMED = 6  # jobs that are named for one reason


class Faults:
    """Errors by what they say, each with the names of the jobs that it is about."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[type[TransNormerError], str, str | None], list[str]] = {}

    @contextmanager
    def of(self, names: Iterable[str]) -> Iterator[None]:
        """Keep the error that the block may end with as one of these jobs."""
        try:
            yield
        except TransNormerError as error:
            self._jobs.setdefault((type(error), error.message, error.hint), []).extend(names)

    def raise_if_any(self, total: int) -> None:
        """One error, of the kind of the first, for all of them; `total` is how many jobs there are."""
        if not self._jobs:
            return
        parts = [
            kind(f"{_named(names, total)}: {message}", hint) for (kind, message, hint), names in self._jobs.items()
        ]
        hints = dict.fromkeys(part.hint for part in parts if part.hint)
        raise type(parts[0])("; ".join(part.message for part in parts), "; ".join(hints) or None, parts)


def _named(names: Sequence[str], total: int) -> str:
    if len(names) == total > 1:
        return f"all {total} jobs"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
