"""How the command speaks: tables and text on stdout, errors and hints on stderr."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from transnormer.errors import TransNormerError


def print_error(error: TransNormerError) -> None:
    """One red line that says what was wrong, and one with what to type next."""
    console = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)
    for label, text in (("[bold red]error:[/]", error.message), ("[bold]hint:[/]", error.hint)):
        if text:
            console.print(label, escape(" ".join(text.split())))


def print_text(text: str) -> None:
    """Text exactly as it is."""
    typer.echo(text)


def print_note(text: str) -> None:
    """A remark beside the output, on stderr, so that stdout can be piped."""
    typer.secho(text, err=True, dim=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table as wide as the terminal; on a pipe as wide as it needs to be, so that no cell is cut."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, no_wrap=index == 0, style="bold" if index == 0 else None)
    for row in rows:
        table.add_row(*(escape(show_value(cell)) for cell in row))
    console = Console(highlight=False, emoji=False)
    if not console.is_terminal:
        console = Console(highlight=False, emoji=False, width=1000)
    console.print(table)


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
