"""Every fault a user can meet, as one typed error with an exit code and a hint what to type next."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable, Sequence


class TransNormerError(Exception):
    """Base of all errors shown to people: one message, one optional hint, one exit code.

    An error that is several at once has them as its `parts`, each with its own message and hint.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None, parts: Sequence[TransNormerError] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.parts = parts

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigError(TransNormerError, ValueError):
    """A wrong key, value, name or flag. Also a ValueError, so that library callers can catch the usual type."""

    exit_code = 2


class RunInUseError(ConfigError):
    """Another process is writing to this run folder."""


class CheckpointError(TransNormerError):
    """Checkpoints exist but none of them verifies, or the one asked for does not fit this run."""

    exit_code = 3


class NonFiniteError(TransNormerError):
    """A loss or gradient became NaN or infinite; raised before the update that would have spread it."""

    exit_code = 4


class DataError(TransNormerError):
    """Input data is missing, malformed, truncated or differs from its recorded hash."""

    exit_code = 5

    @classmethod
    def unreadable(cls, path: object, error: OSError) -> DataError:
        """In the words of the operating system, which refused to read it."""
        denied = isinstance(error, PermissionError)
        hint = "check its permissions (ls -l)" if denied else "check the path"
        return cls(f"cannot read {path}: {error.strerror}", hint)


class DiskError(TransNormerError):
    """The disk is full or cannot be written."""

    exit_code = 6


class RankMissing(TransNormerError):
    """A process of the run froze, ended, or did not come to where the others waited for it; the others end, too."""

    exit_code = 7


class JobsFailed(TransNormerError):
    """Some jobs of a table failed; the others are done."""


class Preempted(TransNormerError):
    """SIGTERM or SIGINT arrived; the run stopped at a step boundary with a valid checkpoint and can be resumed."""

    exit_code = 75


def command(*words: object) -> str:
    """A command to type, its paths quoted where a shell needs that."""
    return shlex.join(["transnormer", *map(str, words)])


class MemoryExhausted(TransNormerError):
    """The machine or the GPU has not the memory that something needed; a run can be resumed on a larger one."""

    @classmethod
    def of(cls, error: Exception) -> MemoryExhausted:
        """In the words of whoever could not allocate it, of which the first line says how much."""
        words = str(error).strip().splitlines()
        return cls(
            f"out of memory{f': {words[0]}' if words else ''}",
            hint="lower train.micro_batch_size, data.sequence_length or the model's sizes; "
            "`transnormer resume RUN` continues a run from its last checkpoint",
        )


def is_out_of_memory(error: Exception) -> bool:
    """Whether it says so: Python has a type for it, torch one on a GPU, and words on a CPU."""
    names = {each.__name__ for each in type(error).__mro__}
    return not names.isdisjoint({"MemoryError", "OutOfMemoryError"}) or "DefaultCPUAllocator" in str(error)


def did_you_mean(wrong: object, known: Iterable[str]) -> str:
    """The hint for an unknown name: the nearest known one, or the whole list when nothing is near."""
    names = sorted(known)
    near = difflib.get_close_matches(str(wrong), names, n=1, cutoff=0.5)
    return f"did you mean '{near[0]}'?" if near else f"known: {', '.join(names)}"
