"""`transnormer analyse recall`: loss by position, that is, how much of the context a model uses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transnormer.cli.analyse_gradients import names_of
from transnormer.cli.console import load_torch, print_table, print_text
from transnormer.cli.eval import Split
from transnormer.cli.model_folder import Weights, model_folder
from transnormer.errors import ConfigError
from transnormer.files import require_place_for

if TYPE_CHECKING:
    from transnormer.config.schema import RunConfig


def recall(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs of causal language models.")],
    out: Annotated[Path, typer.Option(help="Folder for the picture and its numbers.")] = Path("analysis"),
    split: Annotated[Split, typer.Option(help="Which held-out split.")] = Split.valid,
    checkpoint: Annotated[Weights, typer.Option(help="Which weights of the runs.")] = Weights.final,
    windows: Annotated[int | None, typer.Option(min=2, help="Read so many windows.", show_default="all")] = None,
) -> None:
    """Loss by position in the window: a model that uses its context gets better to the end of it.

    Writes recall.svg, .png, .csv and .json. The synthetic side of the same question is the task recall/mqar.

    Example: transnormer analyse recall runs/t2 runs/llama --windows 200
    """
    configs = [_causal_config(run) for run in runs]
    require_place_for(out)
    load_torch()  # all runs were right
    from transnormer.analysis.figure_files import write_finding
    from transnormer.analysis.recall import doubling_bins, draw, facts, losses_by_position, points
    from transnormer.environment import describe_environment
    from transnormer.tasks.causal_lm import CausalLM
    from transnormer.train.run_folder import RunFolder

    tasks = [CausalLM(config) for config in configs]
    for run, task in zip(runs, tasks, strict=True):
        RunFolder(run).require_data(task.store)
        if task.store.digest != tasks[0].store.digest:
            raise ConfigError(
                f"{runs[0]} and {run} have different data, {tasks[0].store.path} and {task.store.path}",
                "losses a token of different texts or tokenizers have no common axis: analyse them one by one",
            )
    curves, found = {}, []
    for run, label, task in zip(runs, names_of(runs), tasks, strict=True):
        losses = losses_by_position(_model(run, checkpoint), task, split.value, windows)
        curves[label] = doubling_bins(losses)
        found.append({"run": label, **facts(losses)})
        rows = [(each.span, f"{each.loss:.3f}", f"{each.standard_error:.3f}") for each in curves[label]]
        print_text(f"{label}: {len(losses):,} windows of {losses.shape[1]:,} tokens, {split.value}")
        print_table(["tokens of context", "loss", "± standard error"], rows)
    data = {"store": tasks[0].store.path.name, "digest": tasks[0].store.digest}
    of = {"split": split.value, "checkpoint": checkpoint.value, "data": data}
    record = {"analysis": "recall", **of, "runs": found, **describe_environment()}
    files = write_finding(out, "recall", draw(curves), points(curves), record)
    print_text(f"written: {', '.join(map(str, files))}")


def _model(run: Path, checkpoint: Weights) -> Any:
    import torch

    from transnormer.generate.load import load_model

    return load_model(model_folder(run, checkpoint), dtype=torch.float32)


def _causal_config(run: Path) -> RunConfig:
    from transnormer.train.run_folder import RunFolder

    folder = RunFolder(run)
    config = folder.read_config()
    if config.task != "causal_lm":
        raise ConfigError(
            f"{run} is a run of {config.task}, which has no loss at each position",
            "give runs of causal_lm; `transnormer eval RUN` scores any other",
        )
    folder.require_store(config)
    return config
