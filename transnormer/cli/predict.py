"""`transnormer predict`: the answers to test sets whose labels are not published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transnormer.cli.console import load_torch, print_text
from transnormer.cli.model_folder import Weights
from transnormer.files import require_place_for


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run of a glue task.")],
    out: Annotated[Path, typer.Option(help="The folder to write the files to.")],
    checkpoint: Annotated[Weights, typer.Option(help="Which weights of the run.")] = Weights.best,
) -> None:
    """Predict the test set of a GLUE task, in the format that gluebenchmark.com scores.

    Example: transnormer predict run --out submission
    """
    from transnormer.train.run_folder import RunFolder

    RunFolder(run).read_config()  # says what is wrong with it before torch is loaded, which takes seconds
    require_place_for(out)
    load_torch()
    from transnormer.train.prediction import predict_run

    for path in predict_run(run, out, checkpoint.value):
        print_text(f"written to {path}")
