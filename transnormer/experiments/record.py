"""results/<folder>/<job>.json: one finished job, as it is published. `Record` is its schema, its writer and its reader.

Records of version 1, which only the Long-Range Arena wrote, have no `version`; `_from_version_1` says how they are
read. They stay as they are: a record is of the run that made it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from transnormer.config.renamed import RENAMED
from transnormer.errors import DataError
from transnormer.experiments.interval import wilson
from transnormer.files import write_json

_IN_PERCENT = ("accuracy", "f1", "matthews")

# A file has the words nan and inf for what JSON has no number for.
_Number = Annotated[float, Field(strict=False)]


class _Strict(BaseModel):
    """Unknown keys and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Scores(_Strict):
    """All metrics of a split at a step."""

    step: int
    metrics: dict[str, _Number]


class Data(_Strict):
    """What a model was trained on.

    `label` is published, regenerated (by the published procedure), stand-in (for published data that differ), or the
    name of a corpus; `sizes` are examples or tokens of each split; `meta` is what the store says of its origin.
    """

    STAND_IN: ClassVar[str] = "stand-in"
    PAPERS: ClassVar[tuple[str, ...]] = ("published", "regenerated", "wikitext103")

    label: str
    digest: str
    sizes: dict[str, int]
    meta: dict[str, Any]

    @property
    def is_papers(self) -> bool:
        """Whether the paper's own numbers are on such data."""
        return self.label in self.PAPERS


class Hardware(_Strict):
    """Processor and GPUs by name."""

    cpu: str
    cores: int | None = None
    gpus: list[str]


class Parent(_Strict):
    """The job whose final weights a job began with, and their sha256."""

    name: str
    config_hash: str
    sha256: str


class GradientNorm(_Strict):
    """The global norm over all logged steps of a run; `nonfinite` are those steps that had none and no update."""

    steps: int
    mean: _Number
    relative_deviation: _Number  # std / mean
    nonfinite: int


class Chosen(_Strict):
    """Which trial decided settings of a job, of which ones: their scores on the validation split, by name."""

    name: str
    scores: dict[str, Annotated[float, Field(strict=False)]]


class Segment(_Strict):
    """One process of a run: the step that it began after, when, by which command and from which commit."""

    after: int
    date: str | None
    command: list[str] | None
    commit: str | None


class Record(_Strict):
    """A finished job: what it was, what it achieved, at what cost, and from what it can be repeated."""

    version: Literal[2] = 2
    name: str
    task: str
    preset: str
    seed: int
    recipe: str | None  # the shipped recipe, and what differs from it and from what its row in the table is
    changes: dict[str, Any]
    config: dict[str, Any]
    config_hash: str | None  # see `job.identity_of`
    command: list[str] | None
    date: str | None
    commit: str | None

    primary_metric: str
    higher_is_better: bool
    valid: Scores | None  # of the best checkpoint
    test: Scores | None  # of the same checkpoint, for a task that has such a split
    protocol: str
    data: Data
    # Older records do not have these keys.
    parent: Parent | None = None
    choice: Chosen | None = None
    segments: list[Segment] | None = None
    examples: dict[str, int] | None = None  # that each split was scored on
    gradient_norm: GradientNorm | None = None

    parameters: int
    steps: int
    seconds: float  # of training, evaluations not counted
    tokens_per_second: float
    wall_steps_per_second: float | None  # start, evaluations and test included: what planning needs
    jobs_at_once: int | None
    resumed_after: int | None  # the step of the checkpoint from which its last process began
    peak_memory_bytes: int | None
    execution: str | None
    device: str
    precision: str
    versions: dict[str, str]
    hardware: Hardware

    @model_validator(mode="before")
    @classmethod
    def _upgrade(cls, tree: Any) -> Any:
        return _from_version_1(tree) if isinstance(tree, dict) and _is_version_1(tree) else tree

    @property
    def score(self) -> float:
        """The primary metric, on the test split where there is one; an accuracy in percent."""
        return self._primary(self.test or self.valid)

    @property
    def valid_score(self) -> float:
        """The same on the validation split, which alone may decide anything."""
        return self._primary(self.valid)

    def _primary(self, scores: Scores | None) -> float:
        value = scores.metrics[self.primary_metric] if scores else float("nan")
        return 100 * value if self.primary_metric in _IN_PERCENT else value

    @property
    def is_older(self) -> bool:
        """Whether it is from before records had the segments of a run, and the number of examples."""
        return self.segments is None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where, at 95 %, the accuracy behind the score lies, in percent; None for another metric."""
        scores, split = (self.test, "test") if self.test else (self.valid, "valid")
        if self.primary_metric != "accuracy" or scores is None:
            return None
        # An older record scored a whole test split, and of another split it does not say how many examples.
        count = (self.examples or {}).get(split) or (self.data.sizes.get(split) if split == "test" else None)
        share = scores.metrics["accuracy"]
        if not count or not 0 <= share <= 1:
            return None
        low, high = wilson(round(share * count), count)
        return 100 * low, 100 * high

    @property
    def score_name(self) -> str:
        """'test accuracy'."""
        return f"{'test' if self.test else 'valid'} {self.primary_metric.replace('_', ' ')}"

    @property
    def score_in_words(self) -> str:
        """'test accuracy 40.70'."""
        return f"{self.score_name} {self.score:.2f}"

    @property
    def steps_per_second(self) -> float:
        """Of training, evaluations not counted."""
        return self.steps / self.seconds

    @property
    def recipe_folder(self) -> str | None:
        """Where its recipe lies: one folder a set-up."""
        return self.recipe.rpartition("/")[0] if self.recipe else None

    @property
    def machine(self) -> str:
        """The GPU that it ran on, or the processor."""
        return self.hardware.gpus[0] if self.device == "cuda" else self.hardware.cpu

    @property
    def is_stand_in(self) -> bool:
        """Whether its data are not those that others publish results on."""
        return self.data.label == Data.STAND_IN

    def write(self, folder: Path) -> None:
        """As a file of its name."""
        write_json(folder / f"{self.name}.json", self.model_dump())


def read_records(folder: Path) -> list[Record]:
    """All records of a folder, by name; other JSON files are about something else."""
    records = []
    for path in sorted(folder.glob("*.json")):
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(f"{path} is not JSON: {error}", "restore it, or remove it and run the job again") from error
        if not isinstance(tree, dict) or not (_is_version_1(tree) or "primary_metric" in tree):
            continue
        try:
            record = Record.model_validate(tree)
        except ValidationError as error:
            raise DataError(f"{path} {_fault(error)}", "restore it, or remove it and run the job again") from error
        if path.stem != record.name:
            raise DataError(
                f"{path} is the record of {record.name}, and its name is of another",
                "move copies to another folder: a table would count them as further runs",
            )
        records.append(record)
    return records


def _fault(error: ValidationError) -> str:
    """What is missing in a record, or of another type than it should be."""
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f"has no '{key}'"
    return f"has '{key}': {json.dumps(first['input'], default=str)}, which is something else"


def machine_of(record: dict[str, Any]) -> str:
    """The GPU that a record of `transnormer bench` was made on, or the processor."""
    hardware = record["environment"]["hardware"]
    return hardware["gpus"][0] if hardware["gpus"] else hardware["cpu"]


def execution_in(tree: dict[str, Any]) -> str | None:
    """How steps ran, as a result or a record says it, also one that has the key's old name and values."""
    if "speed" not in tree:
        return tree.get("execution")
    return RENAMED["train.speed"].value(tree["speed"])


def _is_version_1(tree: dict[str, Any]) -> bool:
    return "version" not in tree and "test_accuracy" in tree


def _from_version_1(old: dict[str, Any]) -> dict[str, Any]:
    """A record of version 1: a Long-Range Arena job whose scores were accuracies in percent.

    It has neither command nor date nor hash, `cells_at_once` for `jobs_at_once`, `speed` for `execution`, and facts
    about the data beside their digest. What is missing in it stays missing and is named by the schema.
    """
    renamed = {"task", "method", "recipe", "data", "best_valid_accuracy", "best_valid_step", "test_accuracy", "speed"}
    renamed |= {"steps_per_second", "cells_at_once", "resumed_after"}
    new = {key: value for key, value in old.items() if key not in renamed}
    if {"task", "method", "seed"} <= old.keys():
        new["name"] = f"{old['task']}-{old['method']}-{old['seed']}"
        new["task"], new["preset"] = f"lra/{old['task']}", f"{old['method']}-lra-{old['task']}"
    data = old.get("data")
    if isinstance(data, dict):
        named = {"kind": "label", "examples": "sizes", "digest": "digest"}
        meta = {key: value for key, value in data.items() if key not in named}
        data = {**{now: data[was] for was, now in named.items() if was in data}, "meta": meta}
    step = old.get("best_valid_step")
    return {
        **new,
        "data": data,
        "recipe": old.get("recipe"),
        "config_hash": None,
        "command": None,
        "date": None,
        "primary_metric": "accuracy",
        "higher_is_better": True,
        "valid": {"step": step, "metrics": _accuracy(old, "best_valid_accuracy")},
        "test": {"step": step, "metrics": _accuracy(old, "test_accuracy")},
        "jobs_at_once": old.get("cells_at_once"),
        "resumed_after": old.get("resumed_after"),
        "execution": execution_in(old),
    }


def _accuracy(old: dict[str, Any], key: str) -> dict[str, Any]:
    percent = old.get(key)
    return {"accuracy": percent / 100 if isinstance(percent, float | int) else percent}
