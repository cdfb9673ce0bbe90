"""`transnormer analyse`: what models and runs show; one file a subcommand."""

from __future__ import annotations

import typer

from transnormer.cli.analyse_gradients import gradients
from transnormer.cli.analyse_recall import recall

app = typer.Typer(help="Look into models and runs: gradients, recall.", no_args_is_help=True)
app.command("gradients")(gradients)
app.command("recall", no_args_is_help=True)(recall)
