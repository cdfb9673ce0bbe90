"""`transnormer report`: a page of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transnormer.cli.console import print_text


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, finished or running.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
) -> None:
    """Lay runs side by side on one self-contained HTML page.

    Example: transnormer report runs/t2 runs/vanilla --out compare.html
    """
    from transnormer.report.page import run_page, write_page
    from transnormer.report.run_record import read_runs

    write_page(run_page(read_runs(runs)), out)
    print_text(f"page written to {out}")
