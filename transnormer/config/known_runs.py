"""Which folders are runs, and what is said to whom a folder was given that is none."""

from __future__ import annotations

import shlex
from pathlib import Path

from transnormer.errors import ConfigError

_RUNS_NAMED = 5


def require_run(folder: Path) -> None:
    """Refuse a folder that holds no run."""
    if not (folder / "config.yaml").is_file():
        problem = "is not a run folder (it has no config.yaml)" if folder.exists() else "does not exist"
        raise ConfigError(f"{folder} {problem}", hint=hint_of_runs(folder))


def hint_of_runs(missing: Path) -> str:
    """What to give instead of a folder that is no run: those in it, beside it, here and in runs/."""
    places = (missing, missing.parent, Path(), Path("runs"))
    runs = [path.parent for place in places if place.is_dir() for path in sorted(place.glob("*/config.yaml"))]
    found = {run.resolve(): run for run in runs}  # once, whatever the ways to it
    found.pop(missing.resolve(), None)
    if not found:
        return "give the folder that `transnormer train --out` wrote"
    newest = sorted(found.values(), key=lambda run: (run / "config.yaml").stat().st_mtime, reverse=True)
    names = [shlex.quote(str(run)) for run in newest[:_RUNS_NAMED]]
    return f"runs there are: {', '.join(names)}{', ...' if len(newest) > _RUNS_NAMED else ''}"
