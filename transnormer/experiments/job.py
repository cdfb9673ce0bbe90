"""A job: one config with one seed, which is one run folder, one process at a time and, once finished, one record."""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from transnormer.config.keys import all_keys, changed_keys, flat
from transnormer.config.load import PREPARATION_KEYS
from transnormer.config.schema import RunConfig
from transnormer.errors import ConfigError, RunInUseError
from transnormer.files import is_locked
from transnormer.journal import last_line
from transnormer.train.checkpoint import MANIFEST, list_checkpoints
from transnormer.train.run_folder import RunFolder

PLACE_KEYS = frozenset({"data.store", "data.source", "train.device"})  # where a job ran, not what it is
PROGRAM: tuple[str, ...] = (sys.executable, "-m", "transnormer")
INIT_KEY = "model.init"  # of a job with a parent: likewise
_LAST_WORDS = 5  # lines of a log
_IDLE = frozenset(PREPARATION_KEYS)  # without effect beside a prepared store


@dataclass(frozen=True)
class Choice:
    """Which of its trials a row chose in a column, the settings it takes from it, and the score that each had.

    Scores are those on the validation split.
    """

    name: str
    settings: tuple[str, ...]
    scores: dict[str, float]


@dataclass(frozen=True)
class Job:
    """`arguments` are those of `transnormer train` that resolve to `config`: a recipe and what is changed of it.

    Of these, `settings` are what makes it a job of its row. `row` and `column` say where it stands in the table that
    asked for it; its identity does not depend on them.
    """

    name: str
    row: str
    column: str
    folder: Path
    config: RunConfig
    arguments: tuple[str, ...]
    settings: tuple[str, ...] = ()
    # The job whose final weights it begins with, which must be finished before; its folder is `model.init`.
    parent: Job | None = None
    # Of a parent that is a job of another experiment: the name of the folders where its run and its record lie.
    home: str | None = None
    # What of `settings` trials have decided; its identity has the settings, not how they were come by.
    choice: Choice | None = None

    @cached_property
    def identity(self) -> str:
        """The hash of what it is."""
        return identity_of(self.config, self.parent)

    @property
    def place_keys(self) -> frozenset[str]:
        """What of its config says where it ran, or where its parent did."""
        return PLACE_KEYS | {INIT_KEY} if self.parent else PLACE_KEYS

    @property
    def recipe(self) -> str:
        """The shipped recipe it is made from."""
        return self.arguments[0]

    @property
    def log_file(self) -> Path:
        """What its processes print; beside the run folder, which is the run's own."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def steps(self) -> int:
        """Of the whole run."""
        return self.config.train.steps

    @property
    def has_store(self) -> bool:
        """Whether its data are prepared already."""
        return self.config.data.store is not None

    @cached_property
    def data_key(self) -> str:
        """What jobs with the same data have in common."""
        return self.config.model_dump_json(exclude={"seed", "model", "optim", "train"})

    def command(self) -> list[str]:
        """What starts it, or takes it up where it stopped."""
        if RunFolder(self.folder).config_file.is_file():
            return [*PROGRAM, "resume", str(self.folder)]
        return [*PROGRAM, "train", *self.arguments, "--out", str(self.folder)]

    def command_in_words(self) -> str:
        """The same as a person would type it."""
        return shlex.join(["transnormer", *self.command()[len(PROGRAM) :]])

    def result(self) -> dict[str, Any] | None:
        """The outcome of a finished run, None for any other."""
        return RunFolder(self.folder).read_result()

    def weights_hash(self) -> str | None:
        """The sha256 of its final weights as their manifest says it; None for a run that is not finished."""
        manifest = RunFolder(self.folder).final / MANIFEST
        if not manifest.is_file():
            return None
        return json.loads(manifest.read_text(encoding="utf-8"))["files"]["model.safetensors"]["sha256"]

    def saved_step(self) -> int:
        """The step of its newest checkpoint, from which it would be resumed."""
        saved = list_checkpoints(RunFolder(self.folder).checkpoints)
        return int(saved[-1].name.rpartition("-")[2]) if saved else 0

    def logged_step(self) -> int | None:
        """The last step in the journal, also of a run in progress."""
        line = last_line(RunFolder(self.folder).journal_file, "train")
        return int(line["step"]) if line else None

    def last_words(self) -> list[str]:
        """The last lines of its log."""
        lines = self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()
        return [line.rstrip() for line in lines if line.strip()][-_LAST_WORDS:]

    def check_folder(self) -> None:
        """Refuse a folder that holds anything but this very run, without touching it.

        A finished run may have been made elsewhere; one that is to be resumed must find its data where they were.
        """
        run = RunFolder(self.folder)
        if not run.config_file.is_file():
            try:
                run.require_new()
            except RunInUseError:
                return  # a process of a killed runner, in its first moments
            except ConfigError as error:
                raise ConfigError(error.message, hint="move it away, or choose another --runs") from error
            return
        free = self.place_keys if run.result_file.is_file() else frozenset()
        if changed := differences(run.read_config(), self.config, besides=free):
            raise ConfigError(
                f"{self.folder} was made with another config: {in_words(changed)}",
                hint="give the same settings again, move it away, or choose another --runs",
            )
        began_with, weights = run.read_initial(), self.parent and self.parent.weights_hash()
        if began_with and weights and began_with["sha256"] != weights:
            assert self.parent is not None
            raise ConfigError(
                f"{self.folder} began with other weights than those in {self.parent.folder}",
                hint="move it away, or choose another --runs",
            )

    def is_being_written(self) -> bool:
        """Whether some process holds the lock of the run."""
        return is_locked(RunFolder(self.folder).lock_file)


def identity_of(config: RunConfig, parent: Job | None = None) -> str:
    """A hex digest that two configs share exactly when they describe the same job, wherever it runs."""
    keys = flat(config.model_dump(mode="json"))
    if parent is not None:
        keys[INIT_KEY] = parent.identity
    if config.data.store is not None:
        keys |= {key: all_keys()[key].default for key in _IDLE & keys.keys()}
    canonical = json.dumps({key: value for key, value in keys.items() if key not in PLACE_KEYS}, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def differences(
    before: RunConfig, now: RunConfig, besides: Collection[str] = frozenset()
) -> dict[str, tuple[Any, Any]]:
    """Every key whose value differs and has an effect, `besides` those that may differ, with both values."""
    prepared = before.data.store is not None and now.data.store is not None
    idle = _IDLE if prepared else frozenset()
    return changed_keys(before.model_dump(mode="json"), now.model_dump(mode="json"), {*besides, *idle})


def in_words(changed: dict[str, tuple[Any, Any]]) -> str:
    """'train.steps was 100, is 200'."""
    return ", ".join(f"{key} was {json.dumps(was)}, is {json.dumps(now)}" for key, (was, now) in changed.items())
