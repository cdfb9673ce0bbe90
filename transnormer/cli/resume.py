"""`transnormer resume`: continue a run that was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transnormer.cli import completion
from transnormer.cli.console import load_torch
from transnormer.cli.train import print_outcome
from transnormer.cli.verbosity import is_quiet
from transnormer.errors import Preempted, command
from transnormer.signals import signals_leave


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="What changes from here on, e.g. train.steps=2000.",
            autocompletion=completion.overrides,
        ),
    ] = None,
) -> None:
    """Continue a run from its newest valid checkpoint; a finished run says so.

    With a larger train.steps a finished run trains longer.

    Example: transnormer resume run

    Example: transnormer resume run train.steps=2000
    """
    words = f"before the first step; nothing is lost\nhint: continue with `{command('resume', run)}`"
    with signals_leave(Preempted.exit_code, words):  # until the loop handles them itself
        from transnormer.train.continuation import changed_config
        from transnormer.train.run_folder import RunFolder

        changed_config(RunFolder(run), overrides or [])  # says what is wrong before torch is loaded
        load_torch()
        from transnormer.train.loop import resume as continue_run

        result = continue_run(run, overrides or [], show=False if is_quiet() else None)
    print_outcome(run, result)
