"""The checkpoints of a run: what goes into one, what comes back out, which one a name means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from transnormer.config.keys import flat
from transnormer.config.load import config_hash
from transnormer.config.renamed import upgraded
from transnormer.config.schema import RunConfig
from transnormer.errors import CheckpointError, ConfigError
from transnormer.files import write_json
from transnormer.train import checkpoint
from transnormer.train.checkpoint import Quarantined
from transnormer.train.learner import Learner
from transnormer.train.run_folder import RunFolder
from transnormer.train.state import RunState

Which = Literal["final", "best", "last"]

_STATE = "state.json"
_PLACES = {"data.store", "data.source", "data.tokenizer"}  # data may move: that they are the same, their digest says


def save_checkpoint(folder: RunFolder, learner: Learner, state: RunState) -> None:
    """Commit weights, optimizer and state of the current step."""

    def write(temporary: Path) -> None:
        learner.save(temporary)
        state.write(temporary / _STATE, learner.config.model_dump(mode="json"))

    _save(checkpoint.step_folder(folder.checkpoints, state.step), learner, state, write)


def save_final(folder: RunFolder, learner: Learner, state: RunState) -> None:
    """Commit the model alone as the run's final weights."""
    _save(folder.final, learner, state, learner.save_model)


def keep_best_and_last(folder: RunFolder, config: RunConfig, state: RunState) -> None:
    """Point best.json to the best checkpoint, then prune the others but the newest."""
    if state.best:
        write_json(folder.best_file, {"step": state.best.step, "metric": state.best.metric, "value": state.best.value})
    checkpoint.prune(folder.checkpoints, config.train.keep_last, [state.best.step] if state.best else [])


def restore(folder: RunFolder, learner: Learner) -> tuple[RunState, list[Quarantined]]:
    """Take up the newest checkpoint that verifies, or the initial weights where none was ever made."""
    found = learner.ranks.on_main(lambda: checkpoint.newest_valid(folder.checkpoints, folder.quarantine))
    if found.path is None:
        learner.reset()
        return RunState(), []
    state, stored = RunState.read(found.path / _STATE)
    _require_same_config(found.path, stored, learner.config.model_dump(mode="json"))
    learner.load(found.path)
    return state, found.quarantined


def weights_folder(folder: RunFolder, which: Which) -> tuple[Path, int]:
    """The verified folder that holds the final, best or last weights of a run, and their step."""
    if which == "final":
        path = folder.final
    elif which == "last":
        path = next(iter(reversed(checkpoint.list_checkpoints(folder.checkpoints))), folder.checkpoints / "step-*")
    elif which == "best":
        best = json.loads(folder.best_file.read_text()) if folder.best_file.is_file() else None
        path = checkpoint.step_folder(folder.checkpoints, best["step"]) if best else folder.best_file
    else:
        raise ConfigError(f"unknown checkpoint '{which}'", hint="one of: final, best, last")
    if not path.exists():
        raise CheckpointError(
            f"{folder.path} has no {which} weights ({path} does not exist)",
            hint=f"finish the run with `transnormer resume {folder.path}`, or ask for another of final, best, last",
        )
    return path, checkpoint.verify(path)["step"]


def _save(target: Path, learner: Learner, state: RunState, write: Any) -> None:
    checkpoint.save(
        target,
        write,
        step=state.step,
        config_hash=config_hash(learner.config),
        bytes_needed=learner.bytes_needed(),
    )


def _require_same_config(path: Path, stored: dict[str, Any], current: dict[str, Any]) -> None:
    before, now = flat(upgraded(stored)), flat(current)
    keys = sorted((before.keys() | now.keys()) - _PLACES)
    different = [key for key in keys if before.get(key) != now.get(key)]
    if different:
        changes = ", ".join(f"{key} was {before.get(key)!r}, is {now.get(key)!r}" for key in different)
        raise CheckpointError(
            f"{path} was written by another config: {changes}",
            hint="restore these keys in config.yaml, or train into a new folder",
        )
