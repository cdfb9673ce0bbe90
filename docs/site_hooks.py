"""What MkDocs does beside its own: files that lie outside docs/ join the site, and links to them are made to fit.

The README is the home page. On the site every page lies below one root; in a checkout links are relative to files.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?(\))")


def pages_outside() -> dict[Path, str]:
    """Files of the checkout, with their places on the site."""
    places = {ROOT / "README.md": "index.md", ROOT / "CONTRIBUTING.md": "contributing.md"}
    places |= {ROOT / "CHANGELOG.md": "changes.md", ROOT / "LICENSE": "license.txt"}
    places |= {file: f"examples/{file.name}" for file in (ROOT / "examples").iterdir() if file.is_file()}
    for page in sorted((ROOT / "results").rglob("*.md")):
        stem = page.parent if page.stem == "README" else page.with_suffix("")
        places[page] = f"records/{stem.relative_to(ROOT / 'results').as_posix()}.md"
    for suffix in ("json", "svg", "png", "csv"):  # what pages show or name as the source of their numbers
        for file in sorted((ROOT / "results").rglob(f"*.{suffix}")):
            places[file] = f"records/{file.relative_to(ROOT / 'results').as_posix()}"
    return places


def with_site_links(text: str, source: Path) -> str:
    """The text of a page with its links to files of the checkout made links of the site."""
    outside = pages_outside()
    own = _place(source, outside)

    def replace(link: re.Match[str]) -> str:
        opening, target, anchor, closing = link.groups()
        if re.match(r"[a-z]+:", target):
            return link.group()
        file = Path(os.path.normpath(source.parent / target))
        place = os.path.relpath(_place(file, outside), Path(own).parent)
        return f"{opening}{place}{anchor or ''}{closing}"

    return _LINK.sub(replace, text)


def _place(file: Path, outside: dict[Path, str]) -> str:
    """Where a file of the checkout is on the site; one that is not there stays a link that MkDocs reports."""
    return outside.get(file) or os.path.relpath(file, ROOT / "docs")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie outside docs/."""
    for source, place in pages_outside().items():
        if source.suffix == ".md":
            content = with_site_links(source.read_text(encoding="utf-8"), source)
            files.append(File.generated(config, place, content=content))
        else:
            files.append(File.generated(config, place, abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Make links of pages in docs/ fit; those from outside do already."""
    source = page.file.abs_src_path
    return with_site_links(markdown, Path(source)) if source else markdown
