"""A cell of a grid: one method on one task with one seed, which is one run folder and one process."""

from __future__ import annotations

import fcntl
import json
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transnormer.config.keys import flat
from transnormer.config.load import PREPARATION_KEYS
from transnormer.config.schema import RunConfig
from transnormer.errors import ConfigError, RunInUseError
from transnormer.report.lra_table import cell_name
from transnormer.train.checkpoint import list_checkpoints
from transnormer.train.run_folder import RunFolder

PLACE_KEYS = frozenset({"data.store", "data.source", "train.device"})  # where a cell ran, not what it is
PROGRAM: tuple[str, ...] = (sys.executable, "-m", "transnormer")
_TAIL = 16_384  # bytes of a journal in which its last train line is found


@dataclass(frozen=True)
class Cell:
    """`arguments` are those of `transnormer train` that resolve to `config`: a recipe and what is changed of it."""

    task: str
    method: str
    seed: int
    folder: Path
    config: RunConfig
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """What its run, its log and its record are called."""
        return cell_name(self.task, self.method, self.seed)

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

    def command(self) -> list[str]:
        """What starts it, or takes it up where it stopped."""
        if RunFolder(self.folder).config_file.is_file():
            return [*PROGRAM, "resume", str(self.folder)]
        return [*PROGRAM, "train", *self.arguments, "--out", str(self.folder)]

    def result(self) -> dict[str, Any] | None:
        """The outcome of a finished run, None for any other."""
        return RunFolder(self.folder).read_result()

    def saved_step(self) -> int:
        """The step of its newest checkpoint, from which it would be resumed."""
        saved = list_checkpoints(RunFolder(self.folder).checkpoints)
        return int(saved[-1].name.rpartition("-")[2]) if saved else 0

    def logged_step(self) -> int | None:
        """The last step in the journal, also of a run in progress."""
        try:
            with RunFolder(self.folder).journal_file.open("rb") as journal:
                journal.seek(0, 2)
                journal.seek(max(0, journal.tell() - _TAIL))
                lines = journal.read().split(b"\n")[:-1]  # what follows the last newline is being written
        except FileNotFoundError:
            return None
        for text in reversed(lines):
            if b'"train"' in text and (line := _line(text)) and line.get("kind") == "train":
                return int(line["step"])
        return None

    def last_words(self, count: int = 5) -> list[str]:
        """The last lines of its log."""
        lines = self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()
        return [line.rstrip() for line in lines if line.strip()][-count:]

    def check_folder(self) -> None:
        """Refuse a folder that holds anything but this very run, without touching it.

        A finished run may have been made elsewhere; one that is to be resumed must find its data where they were.
        """
        run = RunFolder(self.folder)
        if not run.config_file.is_file():
            try:
                run.require_new()
            except RunInUseError:
                return  # a process of a grid that was killed, in its first moments
            except ConfigError as error:
                raise ConfigError(error.message, hint="move it away, or choose another --runs") from error
            return
        free = PLACE_KEYS if run.result_file.is_file() else frozenset()
        if changed := differences(run.read_config(), self.config, besides=free):
            raise ConfigError(
                f"{self.folder} was made with another config: {in_words(changed)}",
                hint="give the same settings again, move it away, or choose another --runs",
            )

    def is_being_written(self) -> bool:
        """Whether some process holds the lock of the run."""
        try:
            with RunFolder(self.folder).lock_file.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False


def differences(
    before: RunConfig, now: RunConfig, besides: Collection[str] = frozenset()
) -> dict[str, tuple[Any, Any]]:
    """Every key whose value differs and has an effect, `besides` those that may differ, with both values."""
    old, new = flat(before.model_dump(mode="json")), flat(now.model_dump(mode="json"))
    prepared = before.data.store is not None and now.data.store is not None
    idle = set(PREPARATION_KEYS) if prepared else set()
    keys = sorted((old.keys() | new.keys()) - set(besides) - idle)
    return {key: (old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)}


def in_words(changed: dict[str, tuple[Any, Any]]) -> str:
    """'train.steps was 100, is 200'."""
    return ", ".join(f"{key} was {json.dumps(was)}, is {json.dumps(now)}" for key, (was, now) in changed.items())


def _line(text: bytes) -> dict[str, Any]:
    """A line of a journal; the first one of a tail may be the end of one."""
    try:
        line = json.loads(text)
    except ValueError:
        return {}
    return line if isinstance(line, dict) else {}
