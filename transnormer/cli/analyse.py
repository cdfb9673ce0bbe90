"""`transnormer analyse`: what models and runs show; one file a subcommand."""

from __future__ import annotations

import typer

from transnormer.cli.analyse_attention import attention
from transnormer.cli.analyse_dilution import dilution
from transnormer.cli.analyse_gradients import gradients
from transnormer.cli.analyse_recall import recall
from transnormer.cli.command import Command, Group
from transnormer.cli.verbosity import spoken

app = typer.Typer(
    help="Look into models and runs: dilution, attention maps, gradients, recall.", no_args_is_help=True, cls=Group
)
app.command("dilution", cls=Command, no_args_is_help=True)(spoken(dilution))
app.command("attention", cls=Command, no_args_is_help=True)(spoken(attention))
app.command("gradients", cls=Command)(spoken(gradients))
app.command("recall", cls=Command, no_args_is_help=True)(spoken(recall))
