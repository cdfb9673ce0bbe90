"""`transnormer resume`: continue a run that was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transnormer.cli.train import print_outcome


def resume(run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]) -> None:
    """Continue a run from its newest valid checkpoint; a finished run says so.

    Example: transnormer resume run
    """
    from transnormer.train.run_folder import RunFolder

    RunFolder(run).read_config()  # says what is wrong with it before torch is loaded, which takes seconds
    from transnormer.train.loop import resume as continue_run

    print_outcome(run, continue_run(run))
