"""The page of the demo: its models side by side, their loss curves, and what T2 wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transnormer.experiments.demo import COLUMNS, Twin
from transnormer.report.page import Page, Picture, Section, Table, write_page
from transnormer.report.run_page import draw_losses, facts_of
from transnormer.report.run_record import read_run


def write_demo_page(twins: Sequence[Twin], sample: str, path: Path) -> None:
    """Render it into a file."""
    result = twins[0].result
    page = Page(
        title="TransNormer demo",
        lead=f"A tiny TransNormer (T2), softmax attention in the same shell with RoPE (llama) and a linear transformer "
        f"(1+elu) of the same size, {result['tokens']:,} tokens of Python source each, trained one after the other on "
        "this machine.",
        sections=[
            Section(
                "Side by side",
                text=f"Scored on held-out files: {result['protocol']}. The decode state of TransNormer stays as it "
                "is however long the sequence grows; that of softmax attention grows with it.",
                table=Table(COLUMNS, [twin.row() for twin in twins]),
            ),
            Section(
                "Loss",
                text="Faint: training batches. Dots: held-out files.",
                pictures=[Picture(svg=draw_losses([read_run(twin.folder) for twin in twins]))],
            ),
            Section("What T2 writes", listing=sample),
        ],
        facts=facts_of(result),
    )
    write_page(page, path)
