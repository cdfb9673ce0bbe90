"""A figure of results/figures on the site: its picture, what its record says of it, and its numbers in words."""

from __future__ import annotations

import csv
from html import escape
from pathlib import Path

from transnormer.experiments.table import NONE
from transnormer.report.markdown import read_record
from transnormer.report.page import Cell, Picture, Section, Table

FIGURE_FILES = (".svg", ".png", ".csv", ".json")
_FEW_ROWS = 60
_BYTES = "train_peak_bytes"
_HEADS = {
    "score": "mean score, %",
    "train_steps_per_second": "training steps/s",
    _BYTES: "peak memory, GiB",
    "paper_score": "paper: mean score, %",
    "paper_train_steps_per_second": "paper: training steps/s",
}


def figure_section(folder: Path, name: str) -> Section:
    """A picture with its files, what its own record says of it, and its numbers as a table where they are few."""
    there = [file for ending in FIGURE_FILES if (file := folder / f"{name}{ending}").is_file()]
    links = [Cell(file.suffix[1:].upper(), f"figures/{file.name}") for file in there]
    facts, numbers = read_record(folder / f"{name}.json") or {}, folder / f"{name}.csv"
    said = [f"The paper: {facts['paper']}"] if "paper" in facts else []
    title, alt = name.replace("figure", "Figure ", 1), f"The figure {name}; {said[0] if said else ''}"
    said += [f"Measured: {facts['protocol']}."] if "protocol" in facts else []
    said += [f"Made from {', '.join(facts['sources'])}."] if "sources" in facts else []
    drawn = _with_tips(there[0], alt)
    picture = Picture(svg=drawn, files=links) if drawn else Picture(image=links[0].href, alt=alt, files=links)
    return Section(
        title,
        text="\n\n".join(said),
        table=_table_of(numbers) if numbers.is_file() else None,
        notes="\n".join(f"- {note}" for note in facts.get("notes", [])),
        pictures=[picture],
    )


def _with_tips(file: Path, alt: str) -> str:
    """A drawing whose points say what they are, to stand inside the page, for an image answers no pointer; or none."""
    svg = file.read_text(encoding="utf-8") if file.suffix == ".svg" else ""
    if 'class="points"' not in svg:
        return ""
    return f'<svg class="drawing" role="img" aria-label="{escape(alt)}" ' + svg.partition("<svg ")[2]


def _table_of(file: Path) -> Table | None:
    with file.open(encoding="utf-8", newline="") as text:
        head, *rows = list(csv.reader(text)) or [[]]
    if not 0 < len(rows) <= _FEW_ROWS:
        return None
    shown = [[_shortened(key, cell) for key, cell in zip(head, row, strict=True)] for row in rows]
    return Table([_HEADS.get(key, key) for key in head], shown)


def _shortened(key: str, text: str) -> str:
    """A number to a few digits, for the file beside it has it in full; a dash for none."""
    try:
        value = float(text)
    except ValueError:
        return text or NONE
    if key == _BYTES:
        return f"{value / 2**30:,.2f}"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:,.5g}"
