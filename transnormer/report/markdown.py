"""Markdown: tables of pages that are generated from the files in results/, and what a page of HTML makes of it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token


def read_record(path: Path) -> dict[str, Any] | None:
    """A record of a benchmark; None where it was not made."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def replaced(page: str, name: str, content: str) -> str:
    """The page with everything between the markers of that name replaced."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    return re.sub(f"{begin}.*{end}", lambda _: f"{begin}\n{content}\n{end}", page, flags=re.DOTALL)


def to_html(text: str) -> str:
    """Markdown as HTML, and whatever HTML is in it as it was typed.

    A table stands in a box in which it scrolls. A link to a file of the repository, such as evaluation.md, becomes its
    text, and an image is left out: a page of HTML may lie anywhere.
    """
    parser = _parser()
    tokens = parser.parse(text)
    for at, token in enumerate(tokens):
        if token.type == "th_open":
            token.attrSet("scope", "col")
        elif token.type == "tr_open" and tokens[at + 1].type == "td_open":
            opening, closing = tokens[at + 1], tokens[at + 3]
            opening.tag = closing.tag = "th"
            opening.attrSet("scope", "row")
        elif token.children:
            token.children = _without_files(token.children)
    return parser.renderer.render(tokens, parser.options, {})


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.add_render_rule("table_open", lambda *_: '<div class="scroll" tabindex="0"><table>\n')
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    return parser


def _without_files(tokens: Sequence[Token]) -> list[Token]:
    """The tokens of a line without images and links, but for those to pages."""
    kept, leaving = [], False
    for token in tokens:
        if token.type == "link_open":
            leaving = not str(token.attrGet("href")).partition("#")[0].endswith(".html")
        if token.type != "image" and not (leaving and token.type in ("link_open", "link_close")):
            kept.append(token)
    return kept
