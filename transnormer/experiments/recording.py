"""From a finished run to its record, and whether a record that was found is that of a job."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from transnormer.config.load import load_config
from transnormer.config.renamed import upgraded
from transnormer.config.schema import RunConfig
from transnormer.data.manifest import origin_in_brief
from transnormer.data.open_store import Store
from transnormer.environment import without_folder
from transnormer.errors import ConfigError
from transnormer.experiments.job import INIT_KEY, Job, differences, in_words
from transnormer.experiments.record import (
    Chosen,
    Data,
    GradientNorm,
    Hardware,
    Parent,
    Record,
    Scores,
    execution_in,
)
from transnormer.experiments.worker_pool import Worker
from transnormer.tasks.registry import find_data, settled, task_entry
from transnormer.train.run_folder import RunFolder


def record_of(job: Job, result: dict[str, Any], store: Store, ended: Worker | None) -> Record:
    """Everything about a finished job; `ended` is None where this runner did not see it run."""
    own = [*job.settings, *([f"data.store={job.config.data.store}"] if job.has_store else [])]
    # The same store says what it was prepared from, and how many steps the epochs of the recipe are.
    recipe = settled(load_config(job.recipe, own))
    changes = differences(recipe, job.config, besides={"seed"} | job.place_keys)
    best, test = result["best"], result["test"]
    written = RunFolder(job.folder).result_file.stat().st_mtime
    return Record(
        name=job.name,
        task=job.config.task,
        preset=job.config.model.name,
        seed=job.config.seed,
        recipe=job.recipe,
        changes={key: Path(now).name if key == INIT_KEY else now for key, (_, now) in changes.items()},
        config=_without_folders(job.config),
        config_hash=job.identity,
        command=["transnormer", "train", *(without_folder(argument) for argument in job.arguments)],
        date=datetime.fromtimestamp(written, UTC).isoformat(timespec="seconds"),
        primary_metric=result["primary_metric"],
        higher_is_better=task_entry(job.config.task).higher_is_better,
        valid=best and Scores(step=best["step"], metrics=best["metrics"]),
        test=test and Scores(step=test["step"], metrics=test["metrics"]),
        data=data_of(store),
        parent=_parent_in(job, result),
        gradient_norm=GradientNorm(**found) if (found := result.get("gradient_norm")) else None,
        choice=Chosen(name=job.choice.name, scores=job.choice.scores) if job.choice else None,
        segments=result.get("segments"),
        examples=result.get("examples") or None,
        wall_steps_per_second=_wall_rate(result["steps"], ended),
        jobs_at_once=ended.at_once if ended else None,
        resumed_after=ended.first_step if ended else None,
        execution=execution_in(result),
        hardware=Hardware(**result["hardware"]),
        **{
            key: result[key]
            for key in (
                *("protocol", "parameters", "steps", "seconds", "tokens_per_second", "peak_memory_bytes"),
                *("device", "precision", "commit", "versions"),
            )
        },
    )


def _parent_in(job: Job, result: dict[str, Any]) -> Parent | None:
    if (parent := job.parent) is None:
        return None
    return Parent(name=parent.name, config_hash=parent.identity, sha256=result["init"]["sha256"])


def data_of(store: Store) -> Data:
    """What a record says about a store."""
    meta = origin_in_brief(store.meta)
    if meta.get("differs_from_published") or meta.get("stands_in_for") or meta.get("limit"):
        label = Data.STAND_IN
    elif "corpus" in meta:
        label = f"{meta['corpus']}, first {meta['limit_bytes']:,} bytes" if meta.get("limit_bytes") else meta["corpus"]
    else:
        label = "regenerated" if meta.get("generated") else "published"
    sizes = {name: len(store.split(name)) for name in store.splits}
    return Data(label=label, digest=store.digest, sizes=sizes, meta=meta)


def _config_of(record: Record, path: Path) -> RunConfig:
    """The config of a record that may be of an older version of this program."""
    try:
        return RunConfig.model_validate(upgraded(record.config))
    except ValidationError as error:
        raise ConfigError(
            f"{path} has a config of another version of this program: {error.errors()[0]['msg']}",
            hint="move it away, or choose another --results",
        ) from error


def check_record(record: Record, job: Job, path: Path, store: Store | None) -> None:
    """Refuse to take a record for the job if it was made with other settings, or from other data where it is known.

    Without a store or files the data would be prepared, and the config says which they would be.
    """
    if changed := differences(_config_of(record, path), job.config, besides=job.place_keys):
        raise ConfigError(
            f"{path} was made with another config: {in_words(changed)}",
            hint="give the same settings again, move it away, or choose another --results",
        )
    if (record.parent and record.parent.config_hash) != (job.parent and job.parent.identity):
        raise ConfigError(
            f"{path} began with other weights: those of {record.parent.name if record.parent else 'no job'}",
            hint="move it away, or choose another --results",
        )
    data, difference = record.data, None
    if store is not None:
        if data.digest != store.digest:
            difference = f"its digest is {data.digest[:12]}, not {store.digest[:12]}"
    elif job.config.data.source is None:
        planned = find_data(job.config)
        changed = {key: (data.meta[key], planned[key]) for key in planned if key in data.meta}
        difference = in_words({key: values for key, values in changed.items() if values[0] != values[1]})
    if difference:
        raise ConfigError(
            f"{path} was made from other data: {difference}",
            hint="use the same --data, move it away, or choose another --results",
        )


def _wall_rate(steps: int, ended: Worker | None) -> float | None:
    """Steps per second of wall time; None for a run whose steps nobody saw here."""
    if ended is None or ended.first_step >= steps:
        return None
    return (steps - ended.first_step) / ended.seconds


def _without_folders(config: RunConfig) -> dict[str, Any]:
    tree = config.model_dump(mode="json")
    for section, key in (("data", "store"), ("data", "source"), ("model", "init")):
        if (value := tree[section].get(key)) is not None:
            tree[section][key] = without_folder(value)
    return tree
