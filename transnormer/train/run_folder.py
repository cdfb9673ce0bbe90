"""The run folder: where each part of a run lies, how the folder is created, who may write to it."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transnormer.config.known_runs import require_run
from transnormer.config.load import dump_config, read_config
from transnormer.config.schema import RunConfig
from transnormer.errors import ConfigError, DataError, DiskError, command
from transnormer.files import (
    TEMPORARY,
    disk_errors,
    lock,
    nearest_existing,
    remove,
    remove_leftovers,
    require_no_link,
    require_unlocked,
    sync,
    write_json,
    write_text,
)
from transnormer.journal import last_line, read_journal
from transnormer.run_result import read_result

if TYPE_CHECKING:
    from transnormer.data.open_store import Store


@dataclass(frozen=True)
class RunFolder:
    """The self-contained record of one run, readable without this package: YAML, JSON lines, safetensors."""

    path: Path

    @property
    def config_file(self) -> Path:
        """Every key of the run, resolved."""
        return self.path / "config.yaml"

    @property
    def environment_file(self) -> Path:
        """Versions, hardware, commit and command line of the process that started the run, and its config."""
        return self.path / "environment.json"

    @property
    def data_file(self) -> Path:
        """The digest of the data that the run began with, and where they lay."""
        return self.path / "data.json"

    @property
    def init_file(self) -> Path:
        """Which weights the run started from, with their hash; only where `model.init` names some."""
        return self.path / "init.json"

    @property
    def journal_file(self) -> Path:
        """One JSON object per logged step, evaluation or event."""
        return self.path / "journal.jsonl"

    @property
    def checkpoints(self) -> Path:
        """step-00000100/ and so on."""
        return self.path / "checkpoints"

    @property
    def quarantine(self) -> Path:
        """Checkpoints that did not verify, each with its reason."""
        return self.path / "quarantine"

    @property
    def final(self) -> Path:
        """The model at the last step, as a Hugging Face folder."""
        return self.path / "final"

    @property
    def best_file(self) -> Path:
        """Which checkpoint is the best by the task's primary metric."""
        return self.path / "best.json"

    @property
    def result_file(self) -> Path:
        """The outcome, written when a run is finished; of one that trains longer since then, the earlier one."""
        return self.path / "result.json"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard events, when they were asked for."""
        return self.path / "tensorboard"

    @property
    def lock_file(self) -> Path:
        """Locked by the one writer; holds its pid and host."""
        return self.path / "lock"

    def remove_weights(self) -> None:
        """Let the weights of a finished run go; what it was and achieved stays."""
        with disk_errors(self.path):
            for folder in (self.final, self.checkpoints):
                if folder.is_dir():
                    remove(folder)

    @property
    def without_weights(self) -> bool:
        """Whether it is finished and its weights were removed."""
        return self.result_file.is_file() and not self.final.exists()

    def require_new(self) -> None:
        """Refuse a folder that is in use or holds anything, without touching it."""
        if not self.path.is_dir() and (self.path.exists() or self.path.is_symlink()):
            what = "is a file, not a folder" if self.path.exists() else "is a symbolic link to nothing"
            raise ConfigError(f"{self.path} {what}", hint="choose another --out")
        require_unlocked(self.lock_file)
        self._require_empty()
        nearest = nearest_existing(self.path)
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            problem = os.strerror(errno.EACCES if nearest.is_dir() else errno.ENOTDIR)
            raise DiskError(f"cannot write {self.path}: {problem}", hint="choose another --out")

    def require_run(self) -> None:
        """Refuse a folder that holds no run."""
        require_run(self.path)

    def create(self) -> None:
        """Make the folder and its parents; an existing empty one is as good."""
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)

    def begin(self, config: RunConfig, data: Store, initial: dict[str, Any] | None = None) -> None:
        """Write what describes the run, config first; the caller holds the lock."""
        self._require_empty()  # again, now that nobody else can fill it
        write_text(self.config_file, dump_config(config))
        self._describe(config, data)
        self.note_initial(initial)
        with disk_errors(self.path):
            self.checkpoints.mkdir()
            sync(self.path)

    def take_up(self, config: RunConfig, changes: Sequence[str], initial: dict[str, Any] | None) -> None:
        """Write what is new about a run that goes on; the config keeps what was before as comments."""
        if changes:
            lines = self.config_file.read_text(encoding="utf-8").splitlines()
            history = [*(line for line in lines if line.startswith("#")), *(f"# {change}" for change in changes)]
            write_text(self.config_file, "\n".join(history) + "\n" + dump_config(config))
        self.note_initial(initial)

    def tidy(self, config: RunConfig, data: Store) -> None:
        """Settle what an interrupted writer, or an older version, left half done; the caller holds the lock."""
        with disk_errors(self.path):
            remove_leftovers(self.path)
            remove_leftovers(self.checkpoints)
        self._describe(config, data)

    def note_initial(self, initial: dict[str, Any] | None) -> None:
        """Write down which weights the run started from, once; the caller holds the lock."""
        if initial is not None and not self.init_file.is_file():
            write_json(self.init_file, initial)

    def read_initial(self) -> dict[str, Any] | None:
        """Which weights the run started from; None where it has not come to writing it, or started from none."""
        if not self.init_file.is_file():
            return None
        try:
            recorded = json.loads(self.init_file.read_text())
            if not isinstance(recorded, dict) or not isinstance(recorded.get("sha256"), str):
                raise TypeError("it has no sha256")
        except (ValueError, TypeError) as error:
            raise DataError(f"{self.init_file} is damaged: {error}", hint="restore it from a backup") from error
        return recorded

    def recorded_threads(self) -> int | None:
        """How many threads PyTorch had when the run began; None where nobody wrote it down."""
        threads = self._read_environment().get("threads")
        return threads if isinstance(threads, int) and threads > 0 else None

    def read_started_config(self) -> dict[str, Any] | None:
        """The config as it was when the run began; older versions did not record it."""
        try:
            started = json.loads(self.environment_file.read_text()) if self.environment_file.is_file() else {}
            config = started.get("config")
            if config is not None and not isinstance(config, dict):
                raise TypeError("its config is no mapping")
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(
                f"{self.environment_file} is damaged: {error}", hint="restore it from a backup, or start a new run"
            ) from error
        return config

    def saved_before(self) -> str | None:
        """What shows that an unfinished run has had a checkpoint, None where nothing does.

        A finished one has its final weights; who wants it to go on is told so elsewhere.
        """
        if self.result_file.exists():
            return None
        if self.best_file.exists():
            return f"{self.best_file.name} names one"
        line = last_line(self.journal_file, "train")
        save_every = self.read_config().train.save_every
        # The step after a save is made once the checkpoint is on the disk.
        if line and line["step"] > save_every:
            return f"the journal goes to step {line['step']}"
        if self.journal_file.exists() and not self.checkpoints.exists():
            return "their folder was there when the journal began"
        return None

    def read_segments(self) -> list[dict[str, Any]]:
        """Every process that made steps of the run: the step it began after, its date, command and commit.

        What an older version did not write down, or what was damaged since, is None.
        """
        began = self._read_environment()
        resumed = [line for line in read_journal(self.journal_file) if line["kind"] == "resumed"]
        facts = ("date", "command", "commit")
        return [
            {"after": line.get("step", 0), **{fact: line.get(fact) for fact in facts}} for line in (began, *resumed)
        ]

    def require_data(self, data: Store) -> None:
        """Refuse other data than the run began with; older versions did not record them."""
        if not self.data_file.is_file():
            return
        try:
            recorded = json.loads(self.data_file.read_text())
            store, digest = recorded["store"], recorded["digest"]
            if not isinstance(digest, str):
                raise TypeError("its digest is no text")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(
                f"{self.data_file} is damaged: {error}",
                hint="restore it from a backup, or delete it if you are sure that the data are those of the run",
            ) from error
        if data.digest != digest:
            raise DataError(
                f"{self.path} began with data of digest {digest[:12]} in {store}; "
                f"those in {data.path} have {data.digest[:12]}",
                hint="put the old data back, or start a new run with `transnormer train`",
            )

    def require_store(self, config: RunConfig) -> None:
        """Say what to do where the store of a run is no longer in its place."""
        if config.data.store is not None and not Path(config.data.store).exists():
            raise DataError(
                f"{config.data.store}, the data of {self.path}, is not there",
                hint=f"put the store back, or write its new place to data.store in {self.config_file}",
            )

    def read_config(self) -> RunConfig:
        """The resolved config that the run was started with."""
        self.require_run()
        return read_config(self.config_file)

    def read_result(self) -> dict[str, Any] | None:
        """The outcome of a finished run, None for any other."""
        return read_result(self.result_file, {"task", "steps", "seconds", "best", "test"})

    def _read_environment(self) -> dict[str, Any]:
        """What is known of the process that started the run: a damaged record of what ran is no reason to stop."""
        with suppress(OSError, ValueError, RecursionError):
            environment = json.loads(self.environment_file.read_text(encoding="utf-8"))
            return environment if isinstance(environment, dict) else {}
        return {}

    def lock(self) -> AbstractContextManager[str | None]:
        """Be the one writer, or raise RunInUseError having changed nothing; yields whom a stale lock belonged to."""
        for path in (self.checkpoints, self.quarantine, self.final, self.journal_file, self.tensorboard):
            require_no_link(path)  # all else is replaced, never written in place
        return lock(self.lock_file)

    def _describe(self, config: RunConfig, data: Store) -> None:
        """Write what is not there yet of the files beside the config."""
        if not self.environment_file.is_file():
            from transnormer.environment import describe_environment  # not for a folder that is only looked at

            started = {**describe_environment(), "config": config.model_dump(mode="json")}
            write_json(self.environment_file, started)
        if not self.data_file.is_file():
            write_json(self.data_file, {"store": str(data.path), "digest": data.digest})

    def _require_empty(self) -> None:
        """Refuse a folder with content; a process killed before it wrote the config leaves none that counts."""
        if not self.path.is_dir():
            return
        if self.config_file.is_file():
            raise ConfigError(
                f"{self.path} already holds a run",
                hint=f"continue it with `{command('resume', self.path)}`, or choose another --out",
            )
        if any(path.name != "lock" and not path.name.startswith(TEMPORARY) for path in self.path.iterdir()):
            raise ConfigError(f"{self.path} is not empty", hint="choose another --out")
