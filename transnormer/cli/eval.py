"""`transnormer eval`: score the model of a run."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from transnormer.cli.console import print_table, print_text
from transnormer.cli.model_folder import Weights


class Split(StrEnum):
    """What a model may be scored on."""

    valid = "valid"
    test = "test"


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    split: Annotated[Split, typer.Option(help="Which held-out split.")] = Split.valid,
    checkpoint: Annotated[Weights, typer.Option(help="Which weights of the run.")] = Weights.final,
) -> None:
    """Score a run.

    The numbers are also written to RUN/eval-CHECKPOINT-SPLIT.json.

    Example: transnormer eval run --split test --checkpoint best
    """
    from transnormer.files import write_json
    from transnormer.train.run_folder import RunFolder

    RunFolder(run).read_config()  # says what is wrong with it before torch is loaded, which takes seconds
    from transnormer.train.loop import evaluate_run

    scored = evaluate_run(run, split.value, checkpoint.value)
    if os.environ.get("RANK", "0") != "0":  # of several processes one speaks for all
        return
    print_text(f"{run}: {checkpoint.value} weights (step {scored['step']:,}) on {split.value}")
    print_table(["metric", "value"], scored["metrics"].items())
    print_text(scored["protocol"])
    target = run / f"eval-{checkpoint.value}-{split.value}.json"
    write_json(target, scored)
    print_text(f"written to {target}")
