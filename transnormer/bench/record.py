"""A benchmark's outcome as one JSON file: numbers, settings, and what they were measured on."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from transnormer.files import disk_errors, require_place_for, write_json, write_text

_HINT = "choose another --out"


def require_writable(path: Path) -> None:
    """Raise what writing the record would, before minutes are spent on measuring it; nothing is written."""
    for file in (path, _partial(path), _table(path)):
        with disk_errors(file, hint=_HINT):
            if file.exists():
                file.open("ab").close()
    require_place_for(path, _HINT)


def recorded(
    rows: Iterable[dict[str, Any]], path: Path | None, name: str, settings: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Pass rows on as they are measured, and keep them beside the record to come, in case it never does."""
    measured = []
    for row in rows:
        measured.append(row)
        if path:
            _write(_partial(path), name, settings, measured)
        yield row


def write_record(
    path: Path, name: str, settings: dict[str, Any], rows: list[dict[str, Any]], table: str | None = None, **more: Any
) -> str:
    """Write `rows` with everything that is needed to measure them again, their table beside them, and say where."""
    _write(path, name, settings, rows, **more)
    _partial(path).unlink(missing_ok=True)
    if table is None:
        return f"written to {path}"
    write_text(_table(path), table + "\n", _HINT)
    return f"written to {path} and {_table(path)}"


def _partial(path: Path) -> Path:
    return path.with_suffix(".partial.json")


def _table(path: Path) -> Path:
    return path.with_suffix(".md")


def _write(path: Path, name: str, settings: dict[str, Any], rows: list[dict[str, Any]], **more: Any) -> None:
    from transnormer.environment import describe_environment  # with torch, for which checks of --out need not wait

    record = {
        "benchmark": name,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "settings": settings,
        **more,
        "rows": rows,
        "environment": describe_environment(),
    }
    with disk_errors(path, hint=_HINT):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, record, _HINT)
