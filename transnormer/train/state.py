"""What a run must remember besides weights and optimizer: counts and the best so far. Randomness needs no memory.

Sample order, masking, dropout and schedule are pure functions of (seed, step), so a checkpoint stores no generator.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, NonNegativeInt, TypeAdapter, ValidationError

from transnormer.errors import CheckpointError
from transnormer.files import write_json

_EXACT = ConfigDict(extra="forbid")  # a file of another shape is refused; the words nan and inf are numbers


@dataclass
class Best:
    """The best evaluation so far, by the task's primary metric."""

    __pydantic_config__ = _EXACT

    step: int
    metric: str
    value: float
    metrics: dict[str, float]


@dataclass
class RunState:
    """The counts of a run after `step` steps."""

    __pydantic_config__ = _EXACT

    step: NonNegativeInt = 0
    tokens: int = 0
    seconds: float = 0.0
    evaluated: int = 0
    logged_tokens: int = 0
    logged_seconds: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    best: Best | None = None
    nonfinite: int = 0
    last_batch: int = -1
    excluded: list[int] = field(default_factory=list)

    def next_batches(self, count: int) -> list[int]:
        """Which global batches the next steps take."""
        return [self._batch_of(step) for step in range(self.step, self.step + count)]

    def _batch_of(self, step: int) -> int:
        """The step-th batch of those that no rewind has excluded."""
        index = step
        for excluded in sorted(self.excluded):
            index += excluded <= index
        return index

    def advance(self, batch: int, tokens: int, seconds: float) -> None:
        """Count one step."""
        self.step += 1
        self.last_batch = batch
        self.tokens += tokens
        self.seconds += seconds

    def rate_since_last_line(self, *, start_anew: bool) -> float:
        """Tokens per training second since the journal's last train line; `start_anew` begins the next interval."""
        tokens, seconds = self.tokens - self.logged_tokens, self.seconds - self.logged_seconds
        if start_anew:
            self.logged_tokens, self.logged_seconds = self.tokens, self.seconds
        return tokens / seconds if seconds > 0 else 0.0

    def write(self, path: Path, config: dict[str, Any]) -> None:
        """Store the state, with the config it belongs to."""
        write_json(path, {**asdict(self), "config": config})

    @classmethod
    def read(cls, path: Path) -> tuple[RunState, dict[str, Any]]:
        """The stored state and the config it belongs to."""
        try:
            values = json.loads(path.read_text())
            config = values.pop("config")
            if not isinstance(config, dict):
                raise TypeError("its config is no mapping")
            return _SHAPE.validate_python(values), config
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointError(
                f"{path} is not the state of a run: {type(error).__name__}: {_first(error)}",
                hint="it was sealed like this; move the checkpoint away, and the one before is used",
            ) from error


_SHAPE = TypeAdapter(RunState)


def _first(error: Exception) -> str:
    """What is wrong, in a line."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
