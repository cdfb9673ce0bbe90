"""A checkpoint: a folder that exists only once its manifest, with the hash of every file, is on the disk.

Written into a temporary folder, each file fsynced, the manifest renamed in last, then the folder renamed into place.
Read back only after every file has the size and sha256 that the manifest recorded. Nothing here is ever unpickled.

The first half is about folders, the second about what of a run goes into them and comes back out.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from transnormer.config.keys import changed_keys
from transnormer.config.load import config_hash
from transnormer.config.renamed import upgraded
from transnormer.config.schema import RunConfig
from transnormer.errors import CheckpointError, ConfigError, command
from transnormer.files import (
    LARGEST_TEXT,
    TEMPORARY,
    disk_errors,
    move_over,
    remove,
    sha256,
    sync,
    sync_tree,
    write_json,
    write_text,
)
from transnormer.train.continuation import FREE
from transnormer.train.run_folder import RunFolder
from transnormer.train.state import RunState

if TYPE_CHECKING:  # whoever only lists checkpoints need not load torch
    from transnormer.train.learner import Learner

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
Which = Literal["final", "best", "last"]

_STATE = "state.json"
# Data may move, and weights to start from are no longer needed: that they are the same, a digest says.
_PLACES = {"data.store", "data.source", "data.tokenizer", "model.init"}


class BrokenCheckpoint(CheckpointError):
    """A folder whose content is not what its manifest recorded."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "restore it from a backup, or use another of the run: --checkpoint best, or last")


@dataclass(frozen=True)
class Quarantined:
    """A broken checkpoint that was moved out of the way, and why; `path` is None for one that is gone."""

    path: Path | None
    reason: str

    @property
    def text(self) -> str:
        """For the journal."""
        return f"moved to {self.path}: {self.reason}" if self.path else self.reason


@dataclass(frozen=True)
class Found:
    """The newest checkpoint that verifies, if there is one, and the broken ones met on the way to it."""

    path: Path | None
    quarantined: list[Quarantined] = field(default_factory=list)


def step_folder(checkpoints: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return checkpoints / f"step-{step:08d}"


def commit(target: Path, write: Callable[[Path], None], *, step: int, config_hash: str, bytes_needed: int) -> Path:
    """Let `write` fill a temporary folder, then make it appear at `target`: whole, hashed and on the disk."""
    temporary = target.with_name(f"{TEMPORARY}{target.name}")
    try:
        with disk_errors(target, bytes_needed):
            temporary.mkdir(parents=True)
            write(temporary)
            _seal(temporary, {"schema_version": SCHEMA_VERSION, "step": step, "config_hash": config_hash})
            move_over(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)  # the fault is what counts; leftovers go at the next start anyway
        raise
    return target


def verify(folder: Path) -> dict[str, Any]:
    """Check every file against the manifest and return the manifest; BrokenCheckpoint says what differs."""
    try:
        manifest = _read_manifest(folder)
        recorded: dict[str, dict[str, Any]] = manifest["files"]
        found = _list_files(folder)
        for name in sorted(recorded.keys() - found):
            raise BrokenCheckpoint(f"{folder}: {name} is missing")
        for name in sorted(found - recorded.keys()):
            raise BrokenCheckpoint(f"{folder}: {name} is not in the manifest")
        for name, expected in recorded.items():
            _check_file(folder, name, expected)
    except PermissionError:
        raise  # nothing is known to be broken, and the newest checkpoint must not go to quarantine for it
    except OSError as error:
        raise BrokenCheckpoint(f"{folder}: cannot be read: {error}") from error
    return manifest


def verify_if_sealed(folder: Path) -> int | None:
    """Check a model folder that has a manifest, as those of a run have, and return its step; None for any other."""
    return verify(folder)["step"] if (folder / MANIFEST).exists() else None


def newest_valid(checkpoints: Path, quarantine_folder: Path) -> Found:
    """The newest checkpoint that verifies; broken ones go to quarantine; candidates but none valid is an error."""
    quarantined: list[Quarantined] = []
    for candidate in reversed(list_checkpoints(checkpoints)):
        try:
            if candidate.is_symlink():  # the files behind it are not this run's to keep or to delete
                raise BrokenCheckpoint(f"{candidate} is a symbolic link")
            manifest = verify(candidate)
            if step_folder(checkpoints, manifest["step"]) != candidate:
                raise BrokenCheckpoint(f"{candidate}: the manifest is of step {manifest['step']}")
        except BrokenCheckpoint as broken:
            quarantined.append(quarantine(candidate, quarantine_folder, broken.message))
        else:
            return Found(candidate, quarantined)
    # Earlier calls may have quarantined all there was: starting over would still throw that work away.
    if quarantined or (quarantine_folder.is_dir() and any(quarantine_folder.iterdir())):
        reasons = "; ".join(item.reason for item in quarantined) or f"all were moved to {quarantine_folder} earlier"
        raise CheckpointError(
            f"no checkpoint in {checkpoints} is valid: {reasons}",
            hint=f"the broken ones are in {quarantine_folder}; restore one from a backup, or train into a new folder",
        )
    return Found(None)


def list_checkpoints(checkpoints: Path) -> list[Path]:
    """Committed checkpoints, oldest first, none of them verified."""
    if not checkpoints.is_dir():
        return []
    found = (path for path in checkpoints.iterdir() if path.name.startswith("step-"))  # glob hides what it may not read
    return sorted(found, key=lambda path: (len(path.name), path.name))


def quarantine(broken: Path, quarantine_folder: Path, reason: str) -> Quarantined:
    """Move a broken checkpoint aside, never delete it, with the reason in reason.txt next to its files."""
    with disk_errors(quarantine_folder):
        place = quarantine_folder / broken.name
        attempt = 1
        while place.exists():
            attempt += 1
            place = quarantine_folder / f"{broken.name}.{attempt}"
        place.mkdir(parents=True)
        broken.rename(place / "checkpoint")
        write_text(place / "reason.txt", reason + "\n")
        sync(broken.parent)
    return Quarantined(place, reason)


def prune(checkpoints: Path, keep_last: int, keep_steps: Sequence[int]) -> None:
    """Delete all but the newest `keep_last` checkpoints and those of `keep_steps`; call only after a commit."""
    kept = {step_folder(checkpoints, step) for step in keep_steps}
    with disk_errors(checkpoints):
        for path in list_checkpoints(checkpoints)[:-keep_last]:
            if path not in kept:
                remove(path)


def _seal(folder: Path, facts: dict[str, Any]) -> None:
    sync_tree(folder)
    files = {}
    for name in sorted(_list_files(folder)):
        files[name] = {"size": (folder / name).stat().st_size, "sha256": sha256(folder / name)}
    manifest = {**facts, "files": files}
    write_json(folder / MANIFEST, {**manifest, "manifest_sha256": _self_hash(manifest)})


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file() or path.is_symlink():
        raise BrokenCheckpoint(f"{folder}: {MANIFEST} is missing")
    if (size := path.stat().st_size) > LARGEST_TEXT:
        raise BrokenCheckpoint(f"{folder}: {MANIFEST} has {size:,} bytes")
    try:
        manifest = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BrokenCheckpoint(f"{folder}: {MANIFEST} is not JSON") from error
    if not isinstance(manifest, dict) or manifest.pop("manifest_sha256", None) != _self_hash(manifest):
        raise BrokenCheckpoint(f"{folder}: {MANIFEST} differs from its own hash")
    version = manifest.get("schema_version")
    if version != SCHEMA_VERSION:
        raise CheckpointError(
            f"{folder} has checkpoint format {version}, this version reads {SCHEMA_VERSION}",
            hint="use the version of transnormer that wrote it",
        )
    files = manifest.get("files")
    if not isinstance(manifest.get("step"), int) or not isinstance(files, dict):
        raise BrokenCheckpoint(f"{folder}: {MANIFEST} has no step or no files")
    for name, facts in files.items():
        if not isinstance(facts, dict) or not {"size", "sha256"} <= facts.keys():
            raise BrokenCheckpoint(f"{folder}: {MANIFEST} has no size or no sha256 of {name}")
    return manifest


def _self_hash(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _list_files(folder: Path) -> set[str]:
    """Names of everything but folders and the manifest, relative to the folder; links are listed, not followed."""
    names: set[str] = set()
    for parent, folders, files in os.walk(folder):
        linked = [name for name in folders if Path(parent, name).is_symlink()]
        names.update(Path(parent, name).relative_to(folder).as_posix() for name in [*files, *linked])
    return names - {MANIFEST}


def _check_file(folder: Path, name: str, expected: dict[str, Any]) -> None:
    status = (folder / name).lstat()
    if not stat.S_ISREG(status.st_mode):
        raise BrokenCheckpoint(f"{folder}: {name} is not a regular file")
    if status.st_size != expected["size"]:
        raise BrokenCheckpoint(f"{folder}: {name} has {status.st_size} bytes, the manifest says {expected['size']}")
    if sha256(folder / name) != expected["sha256"]:
        raise BrokenCheckpoint(f"{folder}: the content of {name} differs from its recorded sha256")


def save_checkpoint(folder: RunFolder, learner: Learner, state: RunState) -> None:
    """Commit weights, optimizer and state of the current step."""

    def write(temporary: Path) -> None:
        learner.save(temporary)
        state.write(temporary / _STATE, learner.config.model_dump(mode="json"))

    _save(step_folder(folder.checkpoints, state.step), learner, state, write)


def save_final(folder: RunFolder, learner: Learner, state: RunState) -> None:
    """Commit the model alone as the run's final weights."""
    _save(folder.final, learner, state, learner.save_model)


def keep_best_and_last(folder: RunFolder, config: RunConfig, state: RunState) -> None:
    """Point best.json to the best checkpoint, then prune the others but the newest."""
    if state.best:
        write_json(folder.best_file, {"step": state.best.step, "metric": state.best.metric, "value": state.best.value})
    prune(folder.checkpoints, config.train.keep_last, [state.best.step] if state.best else [])


def restore(folder: RunFolder, learner: Learner) -> tuple[RunState, list[Quarantined]]:
    """Take up the newest checkpoint that verifies, or the initial weights where none was ever made."""
    found = learner.ranks.on_main(lambda: newest_valid(folder.checkpoints, folder.quarantine))
    current = learner.config.model_dump(mode="json")
    if found.path is None:
        if evidence := folder.saved_before():
            raise CheckpointError(
                f"the checkpoints of {folder.path} are gone: there is none, but {evidence}",
                hint=f"put {folder.checkpoints} back from a backup, or train into a new folder",
            )
        if (started := folder.read_started_config()) is not None:
            _require_same_config(folder.environment_file, started, current)
        learner.reset(folder.read_initial())
        return RunState(), []
    state, stored = RunState.read(found.path / _STATE)
    if step_folder(folder.checkpoints, state.step) != found.path:
        raise CheckpointError(
            f"{found.path / _STATE} is the state after step {state.step}, and its folder has another step",
            hint="it was sealed like this; move the checkpoint away, and the one before is used",
        )
    _require_same_config(found.path, stored, current)
    learner.load(found.path)
    if lost := learner.ranks.on_main(lambda: _lost_best(folder, state)):
        # The search for the best begins anew with these weights: without it, a test of the best could never be made.
        state.best, state.evaluated = None, min(state.evaluated, state.step - 1)
    return state, [*found.quarantined, *lost]


def _lost_best(folder: RunFolder, state: RunState) -> list[Quarantined]:
    """The best checkpoint, moved aside or named where it is not there, if it is not what its manifest recorded."""
    if state.best is None or state.best.step == state.step:
        return []
    path = step_folder(folder.checkpoints, state.best.step)
    if not path.exists():
        return [Quarantined(None, f"{path.name}, the best checkpoint, is gone")]
    try:
        verify(path)
    except BrokenCheckpoint as broken:
        return [quarantine(path, folder.quarantine, broken.message)]
    return []


def weights_folder(folder: RunFolder, which: Which) -> tuple[Path, int]:
    """The verified folder that holds the final, best or last weights of a run, and their step."""
    if which == "final":
        path = folder.final
    elif which == "last":
        path = next(iter(reversed(list_checkpoints(folder.checkpoints))), folder.checkpoints / "step-*")
    elif which == "best":
        best = _best_step(folder)
        path = folder.best_file if best is None else step_folder(folder.checkpoints, best)
    else:
        raise ConfigError(f"unknown checkpoint '{which}'", hint="one of: final, best, last")
    if not path.exists():
        if folder.without_weights:
            raise CheckpointError(
                f"{folder.path} is finished, and its weights were removed, as tables of many models do",
                hint=f"train it again: `{command('train', folder.config_file, '--out', 'RUN')}`",
            )
        raise CheckpointError(
            f"{folder.path} has no {which} weights ({path} does not exist)",
            hint=f"finish the run with `{command('resume', folder.path)}`, or ask for another of final, best, last",
        )
    return path, verify(path)["step"]


def _best_step(folder: RunFolder) -> int | None:
    """The step that best.json names; None where there is no such file yet."""
    if not folder.best_file.is_file():
        return None
    try:
        step = json.loads(folder.best_file.read_text())["step"]
        if not isinstance(step, int):
            raise TypeError(f"its step is {step!r}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{folder.best_file} is damaged: {type(error).__name__}: {error}",
            hint=f"`transnormer resume {folder.path}` writes it again at the next checkpoint; or ask for final or last",
        ) from error
    return step


def _save(target: Path, learner: Learner, state: RunState, write: Any) -> None:
    commit(
        target,
        write,
        step=state.step,
        config_hash=config_hash(learner.config),
        bytes_needed=learner.bytes_needed(),
    )


def _require_same_config(path: Path, stored: dict[str, Any], current: dict[str, Any]) -> None:
    if different := changed_keys(upgraded(stored), current, _PLACES | FREE):
        changes = ", ".join(f"{key} was {before!r}, is {now!r}" for key, (before, now) in different.items())
        raise CheckpointError(
            f"{path} was written by another config: {changes}",
            hint="restore these keys in config.yaml, or train into a new folder",
        )
