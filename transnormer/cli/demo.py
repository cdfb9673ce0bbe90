"""`transnormer demo`: the whole road in one command, on any laptop."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from transnormer.cli.console import load_torch, print_table, print_text
from transnormer.errors import command


def demo(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Changes to the recipe `demo`, for both models."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the two runs and the page go.")] = Path("demo"),
) -> None:
    """Train a tiny TransNormer and its vanilla twin, compare them, write text.

    Both read the same tokens of Python's own standard library. An interrupted demo continues where it stopped.

    Example: transnormer demo --out demo
    """
    from transnormer.config.load import load_config

    load_config("demo", overrides or [])  # says what is wrong with a key before torch is loaded, which takes seconds
    load_torch()
    from transnormer.experiments.demo import COLUMNS, PROMPT, train_twins, write_demo_record
    from transnormer.generate.load import load_causal_lm
    from transnormer.generate.sampling import Sampling
    from transnormer.generate.stream import stream_text
    from transnormer.report.demo_page import write_demo_page

    twins = train_twins(out, overrides or [])
    print_table(COLUMNS, [twin.row() for twin in twins])
    print_text(f"{twins[0].name} continues {PROMPT!r}:\n")
    model, tokenizer = load_causal_lm(twins[0].folder / "final")
    pieces = []

    def show(piece: str) -> None:
        pieces.append(piece)
        sys.stdout.write(piece)
        sys.stdout.flush()

    show(PROMPT)
    stream_text(model, tokenizer, PROMPT, 400, show, sampling=Sampling(0.7), seed=0, stop_at_eos=False)
    page = out / "index.html"
    write_demo_page(twins, "".join(pieces), page)
    write_demo_record(twins, out / "demo.json")
    further = command("generate", twins[0].folder, "--prompt", "class ")
    print_text(f"\n\npage written to {page}; continue with: {further}")
