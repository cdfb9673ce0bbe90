"""One self-contained HTML page: text, tables, pictures and listings, with nothing to load from anywhere.

A text is Markdown. What stands in a table is taken as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from transnormer.files import disk_errors, write_text
from transnormer.report.markdown import to_html

_HINT = "choose another --out"


@dataclass(frozen=True)
class Cell:
    """A number or a word of a table that is a link, or stands out; its `verdict` is a colour."""

    text: str
    href: str = ""
    strong: bool = False
    verdict: str = ""


@dataclass(frozen=True)
class Table:
    """Column names and rows, as they are to be read; a reader can sort it by any column."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    caption: str = ""

    @property
    def cells(self) -> list[list[Cell]]:
        """The rows, of cells alone."""
        return [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in self.rows]


@dataclass(frozen=True)
class Picture:
    """A drawing (`svg`) or an image (its address, with `alt` for who cannot see it), what it shows, and its files.

    `small` ones stand beside each other while there is room.
    """

    caption: str = ""
    svg: str = ""
    image: str = ""
    alt: str = ""
    files: Sequence[Cell] = ()
    small: bool = False


@dataclass(frozen=True)
class Claim:
    """Something that was said, what became of it here (`verdict` is its colour), and why."""

    text: str
    said: str
    verdict: str
    in_words: str
    caveats: Sequence[str]
    reasons: Sequence[str]
    links: Sequence[Cell] = ()


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it, in this order."""

    title: str
    text: str = ""
    claims: Sequence[Claim] = ()
    pictures: Sequence[Picture] = ()
    table: Table | None = None
    notes: str = ""
    listing: str = ""

    @property
    def anchor(self) -> str:
        """What a link to it ends with."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


@dataclass(frozen=True)
class Page:
    """A title, an opening sentence, sections, and small facts at the end; `others` are the pages of the same site."""

    title: str
    lead: str
    sections: Sequence[Section]
    facts: dict[str, Any] = field(default_factory=dict)
    others: Sequence[Cell] = ()


def render(page: Page) -> str:
    """The page as HTML."""
    return _template().render(page=page)


def write_page(page: Page, path: Path) -> None:
    """Render the page into a file."""
    text = render(page)
    with disk_errors(path, hint=_HINT):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text, _HINT)


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("transnormer.report", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["markdown"] = to_html
    return environment.get_template("page.html")
