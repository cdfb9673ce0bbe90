"""What a package says about itself: its version once, that it is typed, how it is cited."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

import transnormer

ROOT = Path(__file__).parent.parent


def test_the_version_has_one_source() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert "version" in project["project"]["dynamic"]
    assert Path(project["tool"]["hatch"]["version"]["path"]) == Path(transnormer.__file__).relative_to(ROOT)
    done = subprocess.run(
        [sys.executable, "-m", "transnormer", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"transnormer {transnormer.__version__}"


def test_the_package_is_typed() -> None:
    assert (Path(transnormer.__file__).parent / "py.typed").is_file()


def test_the_citation_names_software_and_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    paper = citation["preferred-citation"]
    assert (paper["title"], len(paper["authors"])) == ("The Devil in Linear Transformer", 7)
    assert citation["license"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]
