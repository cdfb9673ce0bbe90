"""CONTRIBUTING.md names files, names and commands that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PATHS = sorted(set(re.findall(r"(?<![\w/])(?:transnormer|tests|results)/[\w./]*", re.sub(r"\S*<\w+>\S*", "", PAGE))))


@pytest.mark.parametrize("path", PATHS)
def test_paths_exist(path: str) -> None:
    assert (ROOT / path).exists()


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"\bmake ([a-z-]+)", PAGE)
    assert targets
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("AttentionMixer", "transnormer/mixers/contract.py"),
        ("Mixer", "transnormer/mixers/contract.py"),
        ("METHODS", "transnormer/models/presets.py"),
        ("Task", "transnormer/tasks/contract.py"),
        ("ExampleWriter", "transnormer/data/example_writer.py"),
        ("StoreWriter", "transnormer/data/token_writer.py"),
        ("Experiment", "transnormer/experiments/experiment.py"),
        ("OPS", "transnormer/ops/backend.py"),
    ],
)
def test_names_are_where_the_page_says(name: str, file: str) -> None:
    assert f"`{name}`" in PAGE
    assert file in PAGE
    assert re.search(rf"^(class )?{name}\b", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
