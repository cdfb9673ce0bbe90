"""The one reader of result.json, the outcome of a finished run, which `train/result.py` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transnormer.errors import DataError, command
from transnormer.files import read_floats


def read_result(path: Path, needed: set[str]) -> dict[str, Any] | None:
    """What it says, the metrics among it as numbers; None where there is none. `needed` is what the caller reads."""
    if not path.is_file():
        return None
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if lacking := {"metrics", *needed} - result.keys():
            raise TypeError(f"it has no {', '.join(sorted(lacking))}")
        for scored in filter(None, (result, result.get("best"), result.get("test"))):
            scored["metrics"] = read_floats(scored["metrics"])
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise DataError(
            f"{path} is damaged: {type(error).__name__}: {error}",
            hint=f"delete it; `{command('resume', path.parent)}` writes it again from the last checkpoint",
        ) from error
    return result
