"""The command line: verbs, and what becomes of an error."""

from __future__ import annotations

import errno
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from transnormer import __version__
from transnormer.cli import analyse, bench, data, report
from transnormer.cli.bench_decode import decode
from transnormer.cli.command import Command, Group
from transnormer.cli.console import print_error, print_note
from transnormer.cli.demo import demo
from transnormer.cli.doctor import doctor
from transnormer.cli.eval import evaluate
from transnormer.cli.explain import explain
from transnormer.cli.export import export
from transnormer.cli.generate import generate
from transnormer.cli.list import show_list
from transnormer.cli.predict import predict
from transnormer.cli.reproduce import reproduce
from transnormer.cli.resume import resume
from transnormer.cli.train import train
from transnormer.cli.verbosity import Quiet, Verbose, is_verbose, set_verbosity, spoken
from transnormer.errors import ConfigError, DataError, MemoryExhausted, TransNormerError, did_you_mean, is_out_of_memory

_UNREADABLE = {errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE}

app = typer.Typer(
    name="transnormer",
    help="Train, evaluate and run TransNormer models. Start with: transnormer demo",
    no_args_is_help=True,
    cls=Group,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo", cls=Command)(spoken(demo))
app.command("train", cls=Command)(spoken(train))
app.command("resume", cls=Command)(spoken(resume))
app.command("eval", cls=Command)(spoken(evaluate))
app.command("predict", cls=Command)(spoken(predict))
app.command("generate", cls=Command)(spoken(generate))
app.add_typer(data.app, name="data")
app.command("list", cls=Command)(spoken(show_list))
app.command("explain", cls=Command)(spoken(explain))
app.command("doctor", cls=Command)(spoken(doctor))
app.command("export", cls=Command)(spoken(export))
app.add_typer(report.app, name="report", short_help="Pages of runs and of results.")
bench.app.command("decode", cls=Command)(spoken(decode))
app.add_typer(bench.app, name="bench")
app.add_typer(analyse.app, name="analyse")
app.command("reproduce", cls=Command, no_args_is_help=True)(spoken(reproduce))


_INTERRUPTED = 128 + signal.SIGINT  # how a command ends that Ctrl-C stopped, with nothing to resume


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"transnormer {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Options of the command itself."""


def _verbs(context: typer.Context, begun: str) -> list[str]:
    """For the shell: the verbs behind those that are there."""
    known: Any = typer.main.get_command(app)
    for word in context.params.get("verb") or []:
        known = getattr(known, "commands", {}).get(word)
    return [name for name in getattr(known, "commands", {}) if name.startswith(begun)]


@app.command("help", cls=Command)
def show_help(
    verb: Annotated[
        list[str] | None,
        typer.Argument(metavar="[VERB]...", help="E.g. train, or data prepare.", autocompletion=_verbs),
    ] = None,
) -> None:
    """Show the help of a verb.

    Example: transnormer help data prepare
    """
    known: Any = typer.main.get_command(app)
    for word in verb or []:
        verbs = getattr(known, "commands", {})
        if word not in verbs:
            raise ConfigError(f"no command '{' '.join(verb or [])}'", did_you_mean(word, verbs) if verbs else None)
        known = verbs[word]
    app(args=[*(verb or []), "--help"], prog_name="transnormer")


@contextmanager
def _reading_errors() -> Iterator[None]:
    """Turn a file or folder that may not or cannot be read, wherever it is met, into a DataError that names it."""
    try:
        yield
    except OSError as error:
        if error.filename is None or error.errno not in _UNREADABLE:
            raise
        raise DataError.unreadable(error.filename, error) from error


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code; an error made for people is shown as one, any other with its traceback."""
    set_verbosity()
    try:
        with _reading_errors():
            app(args=None if arguments is None else list(arguments), prog_name="transnormer")
    except TransNormerError as error:
        print_error(error)
        if is_verbose():
            traceback.print_exception(error)
        sys.exit(error.exit_code)
    except SystemExit as ending:
        if ending.code == _INTERRUPTED:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would end in a traceback of what is ending
            print_note("stopped")
        raise
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        told = MemoryExhausted.of(error)
        print_error(told)
        sys.exit(told.exit_code)
