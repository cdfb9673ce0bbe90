"""Which cells the Long-Range Arena has: methods, tasks and seeds by name, each cell with its config and its data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from transnormer.config.load import PREPARATION_KEYS, load_config
from transnormer.data.lra.spec import spec_of
from transnormer.errors import ConfigError, did_you_mean
from transnormer.experiments.cells import Cell
from transnormer.experiments.faults import Faults
from transnormer.models.presets import METHODS, list_presets, preset
from transnormer.report.lra_paper import TASKS
from transnormer.report.lra_table import cell_name

# Those the comparison is about come first, so that a grid that is stopped early has their rows whole.
FIRST_METHODS = ("t2", "vanilla", "linear_elu", "performer", "cosformer", "t1")
# Where the recipes of a set-up lie: Skyformer's, which the paper names; the one its own rows were made in; the larger
# one of its released scripts; and the second of these with what T2 does best with on the validation splits.
SETUPS = {"skyformer": "lra", "authors": "lra/authors", "release": "lra/release", "tuned": "lra/tuned"}
_GRID_KEYS = {"task": "--tasks", "model.preset": "--methods", "seed": "--seeds"}


def arena_methods() -> list[str]:
    """All methods that have a model for the five tasks, in the order in which they are run."""
    presets = set(list_presets())
    able = [method for method in METHODS if all(f"{method}-lra-{task}" in presets for task in TASKS)]
    return sorted(able, key=lambda method: FIRST_METHODS.index(method) if method in FIRST_METHODS else len(able))


def chosen(what: str, text: str | None, known: Sequence[str]) -> list[str]:
    """The names of a comma-separated list, or all that are known."""
    names = known if text is None else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise ConfigError(f"--{what}s: unknown {what} '{name}'", hint=did_you_mean(name, known))
    return list(dict.fromkeys(names))


def chosen_seeds(text: str) -> list[int]:
    """The numbers of a comma-separated list."""
    for word in text.split(","):
        if not word.strip().isdecimal():
            raise ConfigError(
                f"--seeds: '{word.strip()}' is not a number", hint="write e.g. --seeds 42 or --seeds 1,2,3"
            )
    return list(dict.fromkeys(int(word) for word in text.split(",")))


def plan_cells(
    methods: Sequence[str],
    tasks: Sequence[str],
    seeds: Sequence[int],
    runs: Path,
    data: Path | None = None,
    overrides: Iterable[str] = (),
    setup: str = "skyformer",
) -> list[Cell]:
    """All cells in the order in which they are started: seed by seed, method by method, over all tasks.

    Those that cannot work are named in one error, each with its reason.
    """
    overrides = list(overrides)
    for key in _keys(overrides):
        if key in _GRID_KEYS:
            raise ConfigError(f"{key} differs from cell to cell", hint=f"leave it out and use {_GRID_KEYS[key]}")
    if setup not in SETUPS:
        raise ConfigError(f"--setup: unknown set-up '{setup}'", hint=did_you_mean(setup, SETUPS))
    if data is not None and not data.is_dir():
        raise ConfigError(
            f"--data: {data} is {'a file' if data.exists() else 'not there'}", hint="give a folder of stores"
        )
    faults = Faults()
    changes: dict[str, list[str]] = {}
    for task in tasks:
        with faults.of(cell_name(task, method, seed) for seed in seeds for method in methods):
            changes[task] = [*overrides, *_where(task, data, overrides)]
    cells = []
    for seed in seeds:
        for method in methods:
            for task in changes:
                name = cell_name(task, method, seed)
                with faults.of([name]):
                    recipe, model = f"{SETUPS[setup]}/{task}", f"{method}-lra-{task}"
                    own = [f"model.preset={model}", f"seed={seed}"]
                    arguments = [*_positions(recipe, model, overrides), *changes[task], *own]
                    config = load_config(recipe, arguments)
                    preset(model, **config.model.changes())  # a config of a model looks at all its options
                    cells.append(Cell(task, method, seed, runs / name, config, (recipe, *arguments)))
    faults.raise_if_any(len(methods) * len(tasks) * len(seeds))
    return cells


def _positions(recipe: str, model: str, overrides: Sequence[str]) -> list[str]:
    """A recipe may leave absolute positions out; a method that does not rotate queries and keys cannot do without."""
    left_out = load_config(recipe).model.position_embedding == "none"
    if not left_out or "model.position_embedding" in _keys(overrides) or preset(model).position != "none":
        return []
    return ["model.position_embedding=sinusoidal", "model.scale_embedding=true"]


def _keys(overrides: Iterable[str]) -> list[str]:
    return [override.partition("=")[0].strip() for override in overrides]


def _where(task: str, data: Path | None, overrides: Sequence[str]) -> list[str]:
    """The override that names the data of a task, if it needs one; an error says how to prepare it."""
    if not {"data.store", "data.source"}.isdisjoint(_keys(overrides)):
        return []
    if data is not None and (data / task).exists():
        if idle := [key for key in _keys(overrides) if key in PREPARATION_KEYS]:
            raise ConfigError(
                f"{', '.join(idle)}: lra/{task} is prepared already, in {data / task}",
                hint="leave it out, or leave --data out where the task is generated",
            )
        return [f"data.store={data / task}"]
    if not spec_of(f"lra/{task}").generated:
        folder = data or Path("data")
        raise ConfigError(
            f"lra/{task} cannot be generated, and " + (f"{data} has no '{task}'" if data else "there is no --data"),
            hint=f"`transnormer data prepare lra/{task} --source PATH --out {folder / task}`, then --data {folder}",
        )
    return []
