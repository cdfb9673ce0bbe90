"""What the data of a Long-Range Arena task are worth knowing for, as a small record that captions are made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transnormer.data.lra.spec import SPECS
from transnormer.experiments.interval import wilson
from transnormer.markdown import markdown_table

if TYPE_CHECKING:
    from transnormer.data.examples import ExampleStore

FOLDER = "lra-data"  # of these records, in results/


def record_of_data(store: ExampleStore) -> dict[str, Any]:
    """All of it: overlaps and baselines, of which data, computed by what and when."""
    from transnormer.data.lra.stats import describe  # pages read records without torch
    from transnormer.environment import describe_process
    from transnormer.experiments.recording import data_of

    data = data_of(store)
    about = {"task": store.task, "label": data.label, "digest": data.digest, "sizes": data.sizes}
    return {**about, **describe(store), **describe_process()}


def in_words(record: dict[str, Any]) -> list[str]:
    """A record as lines for people, each accuracy with its interval."""
    lines = [f"{record['task']}: {record['label']} data, digest {record['digest'][:12]}"]
    for split, facts in record["shared"].items():
        counts = [f"{name} {count:,}" for name, count in facts.items() if name != "examples"]
        lines.append(f"of {facts['examples']:,} {split} examples: {', '.join(counts)}")
    for rule, share in record["baselines"].items():
        low, high = wilson(round(share * record["sizes"]["test"]), record["sizes"]["test"])
        lines.append(f"{rule}: test accuracy {100 * share:.2f} (95 %: {100 * low:.2f} to {100 * high:.2f})")
    return lines


def read_all(results: Path) -> list[dict[str, Any]]:
    """Those of all tasks that lie in a folder of results, in the order of the tasks."""
    files = (results / FOLDER / f"{task.partition('/')[2]}.json" for task in SPECS)
    return [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]


def table(results: Path) -> str | None:
    """What is reached without reading sequences, and what splits share, for a page; None where nobody computed it."""
    records = read_all(results)
    if not records:
        return None
    rules = list(dict.fromkeys(rule for record in records for rule in record["baselines"]))
    lines = [
        [
            record["task"].partition("/")[2],
            record["label"],
            *(f"{100 * record['baselines'][rule]:.2f}" if rule in record["baselines"] else "–" for rule in rules),
            *(_shared(record["shared"][split]) for split in ("valid", "test")),
        ]
        for record in records
    ]
    return markdown_table(["task", "data", *rules, "valid examples in train", "test examples in train"], lines)


def _shared(facts: dict[str, int]) -> str:
    text = f"{facts['in train']:,} of {facts['examples']:,}"
    second = facts.get("second text in train")
    return text if second is None else f"{text}; the cited text of {100 * second / facts['examples']:.1f} %"
