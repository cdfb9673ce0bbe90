"""results/lra/README.md: our Long-Range Arena beside the paper's, generated from the records of the cells alone.

python -m transnormer.report.lra_table results/lra
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transnormer.config.renamed import upgraded
from transnormer.errors import DataError
from transnormer.report.lra_paper import PAPER, TASKS

_NONE = "–"
_STAND_IN, _CHANGED, _RESUMED = "†", "‡", "§"
_NUMBER, _MAYBE_A_NUMBER = (int, float), (int, float, type(None))
# What is read of a record, and of which types it is.
_NEEDED: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("task", "method", "device", "precision"), str),
    **dict.fromkeys(("config", "changes", "data", "hardware"), dict),
    **dict.fromkeys(("test_accuracy", "steps_per_second", "seconds"), _NUMBER),
    **dict.fromkeys(("wall_steps_per_second", "peak_memory_bytes", "cells_at_once"), _MAYBE_A_NUMBER),
    "seed": int,
    "data.kind": str,
    "data.digest": str,
    "data.generated": (dict, type(None)),
    "data.limit": _MAYBE_A_NUMBER,
    "data.differs_from_published": dict,
    "hardware.cpu": str,
    "hardware.gpus": list,
}

Record = dict[str, Any]
Records = Sequence[Record]


def read_records(folder: Path) -> list[Record]:
    """All records of a folder, by name; files without a test accuracy are about something else."""
    records = []
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(
                f"{path} is not JSON: {error}", "restore it, or remove it and run the cell again"
            ) from error
        if not isinstance(record, dict) or "test_accuracy" not in record:
            continue
        if fault := _fault(record):
            raise DataError(f"{path} {fault}", "restore it, or remove it and run the cell again")
        if path.stem != cell_name(record["task"], record["method"], record["seed"]):
            raise DataError(
                f"{path} is a record of {record['task']} with {record['method']} and seed {record['seed']}, and its "
                "name is of another",
                "move copies to another folder: the table would count them as further runs",
            )
        records.append(record)
    return records


def cell_name(task: str, method: str, seed: int) -> str:
    """What a cell, its run and its record are called."""
    return f"{task}-{method}-{seed}"


def _fault(record: Record) -> str | None:
    """What is missing in a record, or of another type than it should be."""
    for key, types in _NEEDED.items():
        value: Any = record
        for part in key.split("."):
            if part not in value:
                return f"has no '{key}'"
            value = value[part]
        if not isinstance(value, types):
            return f"has '{key}': {json.dumps(value)}, which is something else"
    return None


def lra_page(records: Records) -> str:
    """The whole page."""
    parts = [
        "# Long-Range Arena\n\nGenerated from the JSON files beside it (`transnormer reproduce lra` writes both); one "
        f"file is one run, with its configuration, data, versions and hardware.{_recipes(records)}",
        "## Test accuracy\n\nIn percent, of the checkpoint that is best on the validation split, beside the figure of "
        'the paper (Qin et al. 2022, "The Devil in Linear Transformer"; its rows from vanilla to skyformer are those '
        f"of Chen et al. 2021). The best of ours in bold.{_seeds(records)}",
        accuracy_table(records),
        *_footnotes(records),
        "## Cost\n\nTraining steps per second, peak GPU memory, seconds of training (evaluations not counted), and how "
        f"many cells ran at once: compare times of equally many only.{_resumed(records)}{_circumstances(records)}",
        cost_table(records),
    ]
    return "\n\n".join(parts) + "\n"


def accuracy_table(records: Records) -> str:
    """Methods down; per task ours and the paper's, then the means over all tasks and over those without stand-ins."""
    methods = _methods(records)
    ours = {(method, task): _mean_accuracy(_of(records, method, task)) for method in methods for task in TASKS}
    best = {task: max(ours[method, task] or 0.0 for method in methods) for task in TASKS}
    means: dict[str, tuple[str, ...]] = {f"mean of {len(TASKS)}": TASKS}
    others = [task for task in TASKS if all(map(_is_stand_in, _of(records, None, task)))]  # or not run at all
    if 0 < len(others) < len(TASKS) - 1:
        means[f"mean without {', '.join(others)}"] = tuple(task for task in TASKS if task not in others)
    columns = ["method", *(column for name in (*TASKS, *means) for column in (name, "paper"))]
    rows = []
    for method in methods:
        row, paper = [method], PAPER.get(method, {})
        for task in TASKS:
            shown = _accuracy(_of(records, method, task))
            is_best = ours[method, task] is not None and ours[method, task] == best[task]
            row += [f"**{shown}**" if is_best else shown, _percent(paper.get(task))]
        for tasks in means.values():
            row += [_mean_over(records, method, tasks), _percent(_mean(list(map(paper.get, tasks))))]
        rows.append(row)
    return _markdown(columns, rows)


def summary_rows(records: Records) -> list[list[str]]:
    """A row for each method that ran: its name, its accuracy on each task, and their mean without Retrieval.

    Retrieval is left out of it: its data are the hardest to come by, and stand-ins are not comparable.
    """
    others = [task for task in TASKS if task != "retrieval"]
    return [
        [method, *(_accuracy(_of(records, method, task)) for task in TASKS), _mean_over(records, method, others)]
        for method in dict.fromkeys(record["method"] for record in records)
    ]


def cost_table(records: Records) -> str:
    """Methods that ran down, tasks across: steps/s, GiB, seconds, and how many cells shared the GPU."""
    methods = [method for method in _methods(records) if any(record["method"] == method for record in records)]
    rows = [[method, *(_cost(_of(records, method, task)) for task in TASKS)] for method in methods]
    return _markdown(["steps/s, GiB, s, at once", *TASKS], rows)


def _methods(records: Records) -> list[str]:
    """Those of the paper in its order, then any others."""
    return list(dict.fromkeys([*PAPER, *(record["method"] for record in records)]))


def _of(records: Records, method: str | None, task: str) -> list[Record]:
    return [record for record in records if record["task"] == task and method in (None, record["method"])]


def _is_stand_in(record: Record) -> bool:
    return record["data"]["kind"] == "stand-in"


def _mean(values: Sequence[float | None]) -> float | None:
    """Of all values, or None where one is missing."""
    present = [value for value in values if value is not None]
    return statistics.fmean(present) if present and len(present) == len(values) else None


def _mean_accuracy(records: Records) -> float | None:
    return _mean([record["test_accuracy"] for record in records])


def _percent(value: float | None) -> str:
    return _NONE if value is None else f"{value:.2f}"


def _accuracy(records: Records) -> str:
    """The mean over seeds, its deviation where there are several, and marks for what makes it incomparable."""
    text = _percent(_mean_accuracy(records))
    if len(records) > 1:
        text += f" ± {statistics.stdev(record['test_accuracy'] for record in records):.2f}"
    return text + _marks(records)


def _mean_over(records: Records, method: str, tasks: Sequence[str]) -> str:
    """The mean of a method over tasks, with the marks of all that is in it."""
    found = [_of(records, method, task) for task in tasks]
    mean = _mean([_mean_accuracy(each) for each in found])
    return _NONE if mean is None else _percent(mean) + _marks([record for each in found for record in each])


def _marks(records: Records) -> str:
    marks = {_STAND_IN: any(map(_is_stand_in, records)), _CHANGED: any(record["changes"] for record in records)}
    return "".join(mark for mark, holds in marks.items() if holds)


def _cost(records: Records) -> str:
    if not records:
        return _NONE
    peaks = [record["peak_memory_bytes"] for record in records if record["peak_memory_bytes"] is not None]
    memory = f"{max(peaks) / 2**30:.2f}" if peaks else _NONE
    rate = statistics.fmean(record["steps_per_second"] for record in records)
    seconds = statistics.fmean(record["seconds"] for record in records)
    at_once = "/".join(dict.fromkeys(str(record["cells_at_once"] or "?") for record in records))
    resumed = _RESUMED if any(record.get("resumed_after") for record in records) else ""
    return f"{rate:,.0f}, {memory}, {seconds:,.0f}, {at_once}{resumed}"


def _recipes(records: Records) -> str:
    """Which set-up it is, unless it is the one that the paper names."""
    folders = recipe_folders(records) - {"lra"}
    return f" Recipes: {', '.join(f'`{folder}/*`' for folder in sorted(folders))}." if folders else ""


def recipe_folders(records: Records) -> set[str]:
    """Where the recipes of these records lie: one folder a set-up."""
    return {record["recipe"].rpartition("/")[0] for record in records if "recipe" in record}


def _seeds(records: Records) -> str:
    seeds = sorted({record["seed"] for record in records})
    if not seeds:
        return ""
    if len(seeds) == 1:
        return f" One seed: {seeds[0]}."
    return f" Mean and standard deviation over the seeds {', '.join(map(str, seeds))}, or those of them that ran."


def _footnotes(records: Records) -> list[str]:
    """What the marks mean, and how the other sets were come by."""
    lines = []
    for task in TASKS:
        kinds = {record["data"]["kind"]: record["data"] for record in _of(records, None, task)}
        if "stand-in" in kinds:
            lines.append(f"{_STAND_IN} {task}: not the published data, never compare with it ({_difference(kinds)}).")
        if "regenerated" in kinds:
            lines.append(
                f"{task}: generated anew by the published procedure, seed {kinds['regenerated']['generated']['seed']}."
            )
    changes = sorted({f"{key}={json.dumps(value)}" for record in records for key, value in record["changes"].items()})
    if changes:
        lines.append(f"{_CHANGED} differs from the recipe: {', '.join(changes)}.")
    if any(
        record["task"] == "text" and upgraded(record["config"]).get("lra", {}).get("protocol") == "lra_compat"
        for record in records
    ):
        lines.append("text under lra_compat: the checkpoint that is best on the test split, as in published numbers.")
    return ["  \n".join(lines)] if lines else []


def _difference(kinds: dict[str, dict[str, Any]]) -> str:
    data = kinds["stand-in"]
    parts = [f"{part} has {difference}" for part, difference in data["differs_from_published"].items()]
    if data["limit"]:
        parts.append(f"at most {data['limit']:,} examples of each split")
    return ", ".join(parts)


def _resumed(records: Records) -> str:
    if not any(record.get("resumed_after") for record in records):
        return ""
    return f" {_RESUMED} Stopped and continued: over all its parts, but as many at once as in the last one."


def _circumstances(records: Records) -> str:
    """Where, and in which precision."""
    places = sorted({f"{_machine(record)}, {record['precision']}" for record in records})
    return f" Measured on: {'; '.join(places)}." if places else ""


def _machine(record: Record) -> str:
    return record["hardware"]["gpus"][0] if record["device"] == "cuda" else record["hardware"]["cpu"]


def _markdown(columns: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m transnormer.report.lra_table", description="Write README.md beside the records of a folder."
    )
    parser.add_argument("folder", type=Path, help="records of `transnormer reproduce lra`, e.g. results/lra")
    folder = parser.parse_args().folder
    if not folder.is_dir():
        parser.error(f"{folder} is not a folder")
    try:
        page = lra_page(read_records(folder))
    except DataError as error:
        parser.exit(error.exit_code, f"error: {error.message}\nhint: {error.hint}\n")
    (folder / "README.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    _main()
