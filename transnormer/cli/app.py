"""The command line: verbs, and what becomes of an error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from transnormer import __version__
from transnormer.cli import analyse, bench, data
from transnormer.cli.bench_decode import decode
from transnormer.cli.console import print_error
from transnormer.cli.demo import demo
from transnormer.cli.doctor import doctor
from transnormer.cli.eval import evaluate
from transnormer.cli.explain import explain
from transnormer.cli.export import export
from transnormer.cli.generate import generate
from transnormer.cli.list import show_list
from transnormer.cli.predict import predict
from transnormer.cli.report import report
from transnormer.cli.reproduce import reproduce
from transnormer.cli.resume import resume
from transnormer.cli.train import train
from transnormer.errors import TransNormerError

app = typer.Typer(
    name="transnormer",
    help="Train, evaluate and run TransNormer models. Start with: transnormer demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo)
app.command("train")(train)
app.command("resume")(resume)
app.command("eval")(evaluate)
app.command("predict")(predict)
app.command("generate")(generate)
app.add_typer(data.app, name="data")
app.command("list")(show_list)
app.command("explain")(explain)
app.command("doctor")(doctor)
app.command("export")(export)
app.command("report")(report)
bench.app.command("decode")(decode)
app.add_typer(bench.app, name="bench")
app.add_typer(analyse.app, name="analyse")
app.command("reproduce", no_args_is_help=True)(reproduce)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"transnormer {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of the command itself."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code; an error made for people is shown as one, any other with its traceback."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="transnormer")
    except TransNormerError as error:
        print_error(error)
        sys.exit(error.exit_code)
