"""How far preparing a store is: noted beside its files, so that after a kill the same plan goes on."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from transnormer.data import text_encoder
from transnormer.data.arrays import MAX_ENTRIES
from transnormer.data.manifest import dtype_for
from transnormer.data.stored_tokenizer import FOLDER
from transnormer.data.token_writer import Counts
from transnormer.files import write_json

log = logging.getLogger(__name__)

_NAME = "progress.json"
_VERSION = 1


@dataclass(frozen=True)
class State:
    """What was decided before the first token, and what is on the disk: so many batches, and what they hold."""

    plan: Any
    vocab_size: int
    end_of_document: int | None
    batches: int = 0
    splits: Mapping[str, Counts] = field(default_factory=dict)


def write_state(folder: Path, state: State) -> None:
    """Note it; what it says must be on the disk already."""
    content = {**asdict(state), "plan": _digest(state.plan), "splits": {k: list(v) for k, v in state.splits.items()}}
    write_json(folder / _NAME, content)


def read_state(folder: Path, plan: Any) -> State | None:
    """What an earlier attempt at this plan noted; None, and an empty folder, where there is none to go on from."""
    path = folder / _NAME
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError:
        found = {}
    if found.get("plan") != _digest(plan):
        _clear(folder, kept=())
        return None
    splits = {split: Counts(*counts) for split, counts in found["splits"].items()}
    state = State(plan, found["vocab_size"], found["end_of_document"], found["batches"], splits)
    shards = _shards(state)
    if any(not (folder / name).is_file() or (folder / name).stat().st_size < size for name, size in shards.items()):
        _clear(folder, kept=())
        return None
    _clear(folder, kept=(*shards, _NAME, FOLDER))  # what was written after the note will be written again
    if state.batches:
        done = sum(counts.bytes for counts in splits.values())
        log.warning("going on after %s bytes that were tokenized before", f"{done:,}")
    return state


def forget_state(folder: Path) -> None:
    """The store is complete."""
    (folder / _NAME).unlink()


def _digest(plan: Any) -> str:
    """Of a plan, and of all else that the number of batches depends on."""
    everything = [_VERSION, text_encoder.BATCH_BYTES, MAX_ENTRIES, plan]
    return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()


def _shards(state: State) -> dict[str, int]:
    """The files that what is noted lies in, and the bytes that each must have at least."""
    width = int(dtype_for(state.vocab_size).removeprefix("uint")) // 8
    sizes = {}
    for split, counts in state.splits.items():
        for number, start in enumerate(range(0, counts.tokens, MAX_ENTRIES)):
            sizes[f"{split}-{number:05d}.bin"] = width * min(MAX_ENTRIES, counts.tokens - start)
    return sizes


def _clear(folder: Path, kept: tuple[str, ...]) -> None:
    for path in folder.iterdir():
        if path.name in kept:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
