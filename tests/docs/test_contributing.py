"""CONTRIBUTING.md and docs/architecture.md name files, names and commands that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = {page: (ROOT / page).read_text(encoding="utf-8") for page in ("CONTRIBUTING.md", "docs/architecture.md")}


def paths_in(text: str) -> set[str]:
    """Every path of the repository; those with a <name> in them are of files to come."""
    return set(re.findall(r"(?<![\w/])(?:transnormer|tests|results|docs)/[\w./]*", re.sub(r"\S*<\w+>\S*", "", text)))


@pytest.mark.parametrize(("page", "path"), sorted((page, path) for page in PAGES for path in paths_in(PAGES[page])))
def test_paths_exist(page: str, path: str) -> None:
    assert (ROOT / path).exists()


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = [target for text in PAGES.values() for target in re.findall(r"\bmake ([a-z-]+)`", text)]
    targets += re.findall(r"^make ([a-z-]+)", PAGES["CONTRIBUTING.md"], re.MULTILINE)
    assert {"test", "readme"} <= set(targets)
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("AttentionMixer", "transnormer/mixers/contract.py"),
        ("Mixer", "transnormer/mixers/contract.py"),
        ("METHODS", "transnormer/models/presets.py"),
        ("Task", "transnormer/tasks/contract.py"),
        ("ExampleWriter", "transnormer/data/example_writer.py"),
        ("prepare", "transnormer/data/prepare.py"),
        ("Experiment", "transnormer/experiments/experiment.py"),
        ("OPS", "transnormer/ops/backend.py"),
    ],
)
def test_names_are_where_the_page_says(name: str, file: str) -> None:
    page = PAGES["CONTRIBUTING.md"]
    assert f"`{name}`" in page
    assert file in page
    assert_defined(name, file)


def test_names_are_where_the_architecture_says() -> None:
    """There a name is followed by its file: `Name` (`transnormer/file.py`)."""
    named = re.findall(r"`(\w+)`,? \(?`(transnormer/[\w/]+\.py)`", PAGES["docs/architecture.md"])
    assert len(named) > 15
    for name, file in named:
        assert_defined(name, file)


def test_every_layer_is_in_the_architecture() -> None:
    contract = (ROOT / ".importlinter").read_text(encoding="utf-8")
    layers = contract.partition("layers =")[2].partition("\n\n")[0]
    names = re.findall(r"transnormer\.(\w+)", layers)
    table = PAGES["docs/architecture.md"].partition("## The layers")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
    shown = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert shown == names


def assert_defined(name: str, file: str) -> None:
    pattern = rf"^\s*(class |def |async def )?{name}\b"
    assert re.search(pattern, (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), f"{file} has no {name}"
