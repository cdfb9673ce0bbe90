"""`transnormer analyse`: what models and runs show; one file a subcommand."""

from __future__ import annotations

import typer

from transnormer.cli.analyse_gradients import gradients
from transnormer.cli.analyse_recall import recall
from transnormer.cli.command import Command, Group
from transnormer.cli.verbosity import spoken

app = typer.Typer(help="Look into models and runs: gradients, recall.", no_args_is_help=True, cls=Group)
app.command("gradients", cls=Command)(spoken(gradients))
app.command("recall", cls=Command, no_args_is_help=True)(spoken(recall))
