"""`transnormer report`: a page of runs, or a site of all results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transnormer.cli.command import Command, Group
from transnormer.cli.console import print_text
from transnormer.cli.verbosity import spoken
from transnormer.errors import ConfigError


class _RunsUnlessNamed(Group):
    """`report RUN ...` is `report runs RUN ...`: what is no name of a command is given to that one."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        is_own = not args or args[0] in self.commands or args[0] in ctx.help_option_names
        return super().parse_args(ctx, args if is_own else ["runs", *args])


app = typer.Typer(
    cls=_RunsUnlessNamed,
    no_args_is_help=True,
    help="Pages of runs and of results. Example: transnormer report runs/t2 runs/vanilla --out compare.html",
)


@app.command("runs", cls=Command)
@spoken
def report_runs(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, finished or running.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
) -> None:
    """Lay runs side by side on one self-contained HTML page; the word `runs` may be left out.

    Example: transnormer report runs runs/t2 runs/vanilla --out compare.html
    """
    if out.suffix not in (".html", ".htm"):
        raise ConfigError(f"--out: {out} has no ending that a browser knows", f"give --out {out}.html")
    from transnormer.report.page import write_page
    from transnormer.report.run_page import run_page
    from transnormer.report.run_record import read_runs

    write_page(run_page(read_runs(runs)), out)
    print_text(f"page written to {out}")


@app.command("site", cls=Command)
@spoken
def report_site(
    out: Annotated[Path, typer.Option(help="The folder of the site: new, empty, or an older site.")],
    results: Annotated[Path, typer.Option(help="The folder of records.")] = Path("results"),
    runs: Annotated[
        list[Path] | None, typer.Option(metavar="RUN", help="A run folder to show as well; may be given several times.")
    ] = None,
) -> None:
    """Make a static site of all records: the paper's claims with our verdicts, tables, figures, speed, runs.

    Example: transnormer report site --out pages
    """
    from transnormer.report.run_record import read_runs
    from transnormer.report.site import write_site

    pages = write_site(results, out, read_runs(runs or []))
    print_text(f"{pages} pages written; open {out / 'index.html'}")
