"""`transnormer demo`: the whole road in one command, on any laptop."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from transnormer.cli.console import load_torch, print_table, print_text
from transnormer.errors import Preempted, command
from transnormer.files import require_place_for


def demo(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Changes to the recipe `demo`, for all models."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the runs and the page go.")] = Path("demo"),
) -> None:
    """Train a tiny TransNormer, its softmax twin and a linear transformer; compare them, write text and a page.

    All read the same tokens of Python's own standard library. An interrupted demo continues where it stopped.

    Example: transnormer demo --out demo
    """
    from transnormer.config.load import load_config
    from transnormer.experiments.demo import COLUMNS, PROMPT, check, train_twins, write_demo_record, write_sample

    require_place_for(out)
    check(load_config("demo", overrides or []))  # says what is wrong with a key before torch is loaded
    load_torch()
    from transnormer.report.demo_page import write_demo_page

    try:
        twins = train_twins(out, overrides or [])
    except Preempted as stop:
        again = command("demo", "--out", out, *(overrides or []))
        raise Preempted(stop.message, hint=f"`{again}` goes on where it stopped") from None
    print_table(COLUMNS, [twin.row() for twin in twins])
    samples = {}
    for twin in twins:
        print_text(f"\n{twin.name} continues {PROMPT!r}:\n")
        samples[twin.name] = write_sample(twin, _show)
        print_text("")
    page = out / "index.html"
    write_demo_page(twins, samples, page)
    write_demo_record(twins, out / "demo.json")
    further = command("generate", twins[0].folder, "--prompt", "class ")
    print_text(f"\npage written to {page}; continue with: {further}")


def _show(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()
