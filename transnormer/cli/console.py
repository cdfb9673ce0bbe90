"""How the command speaks: tables and text on stdout, errors and hints on stderr."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from importlib import import_module
from typing import Any

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from transnormer.cli.verbosity import is_quiet, is_verbose
from transnormer.errors import Preempted, TransNormerError

_LEAST_WIDTH = 30  # of a column with sentences in it


def print_error(error: TransNormerError) -> None:
    """One red line that says what was wrong, and one with what to type next; to be stopped is no error."""
    console = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)
    label = [] if isinstance(error, Preempted) else ["[bold red]error:[/]"]
    for part in error.parts or [error]:
        console.print(*label, escape(" ".join(part.message.split())))
        if part.hint:
            console.print("[bold]hint:[/]", escape(" ".join(part.hint.split())))


def print_text(text: str) -> None:
    """Text exactly as it is."""
    typer.echo(text)


def print_note(text: str) -> None:
    """A remark beside the output, on stderr, so that stdout can be piped."""
    if not is_quiet():
        typer.secho(text, err=True, dim=True)


def load_torch(first: str = "transnormer.models.backbone") -> None:
    """Import PyTorch, and what of ours is needed first, which takes seconds, and on a terminal say so while it lasts.

    Models need transformers, whose import takes longer than that of PyTorch.
    """
    began = time.perf_counter()
    console = Console(stderr=True)
    shown = console.status("loading PyTorch ...") if console.is_terminal and not is_quiet() else nullcontext()
    with shown:
        import_module(first)
    if is_verbose():
        print_note(f"PyTorch loaded in {time.perf_counter() - began:.1f} s")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table if it fits the terminal, or fits with one column wrapped; otherwise entries of several lines.

    On a pipe it is a table as wide as it needs to be, so that no cell is cut.
    """
    cells = [[show_value(cell) for cell in row] for row in rows]
    console = Console(highlight=False, emoji=False)
    if not console.is_terminal:
        console = Console(highlight=False, emoji=False, width=1000)
    widths = [max(map(cell_len, column)) for column in zip(columns, *cells, strict=True)]
    longest = widths.index(max(widths))
    left = console.width - sum(widths) + widths[longest] - 3 * (len(columns) - 1) - 2
    if left < min(widths[longest], _LEAST_WIDTH):
        _print_entries(console, columns, cells)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, no_wrap=index != longest, style="bold" if index == 0 else None)
    for row in cells:
        table.add_row(*map(escape, row))
    console.print(table)


def _print_entries(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Each row as a paragraph: its name, what it is, and the other cells under it with the names of their columns."""
    for name, about, *others in rows:
        told = "; ".join(f"{column}: {cell}" for column, cell in zip(columns[2:], others, strict=True) if cell)
        fits = cell_len(name) + cell_len(about) + 2 <= console.width
        console.print(f"[bold]{escape(name)}[/]{f'  {escape(about)}' if fits else ''}")
        for line in (told,) if fits else (about, told):
            console.print(Padding(escape(line), (0, 0, 0, 2)))


def show_value(value: Any) -> str:
    """A value as one would write it in a recipe."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(show_value, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {show_value(item)}" for key, item in value.items()) + "}"
    return str(value)
