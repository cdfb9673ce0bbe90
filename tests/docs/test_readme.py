"""The README tells the truth: everything under Usage runs, in order, as written; its table comes from results/."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from transnormer.report.kernel_tables import with_kernels
from transnormer.report.pages import generated

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def usage_blocks() -> list[tuple[str, str]]:
    usage = re.search(r"^## Usage$(.*?)^## ", README, re.MULTILINE | re.DOTALL)
    assert usage is not None
    return re.findall(r"^```(\w+)\n(.*?)^```", usage.group(1), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder_of_a_user(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a user has it, with the files that the examples name."""
    folder = tmp_path_factory.mktemp("usage")
    (folder / "docs").symlink_to(ROOT / "docs")
    (folder / "README.md").symlink_to(ROOT / "README.md")
    return folder


def test_usage(folder_of_a_user, forked_command):
    """The command line without the imports of each command; that the command is installed is the packaging's to see."""
    blocks = usage_blocks()
    assert [language for language, _ in blocks] == ["python", "bash", "python"]
    command = folder_of_a_user / "bin" / "transnormer"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.join(forked_command)} "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    # transformers copies the loader file of a model folder into its cache.
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "HF_HOME": str(folder_of_a_user / "cache")}
    for language, code in blocks:
        command = [sys.executable, "-c", code] if language == "python" else ["bash", "-euc", code]
        done = subprocess.run(command, cwd=folder_of_a_user, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"


def test_the_two_commands_exist():
    targets = re.findall(r"^make (\w+)", README, re.MULTILINE)
    assert targets == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_pages_are_generated_from_the_records():
    pages = generated(ROOT)
    names = {page.relative_to(ROOT).as_posix() for page in pages}
    assert {"README.md", "docs/results.md", "docs/performance.md", "results/lra/README.md"} <= names
    for page, text in pages.items():
        assert page.read_text(encoding="utf-8") == text, f"{page}: run `make readme`"


def test_the_readme_has_at_most_three_tables_of_results():
    results = re.search(r"<!-- results:begin -->(.*)<!-- results:end -->", README, re.DOTALL)
    assert results is not None
    assert len(re.findall(r"^\|---", results.group(1), re.MULTILINE)) == 3
    assert "](docs/results.md)" in results.group(1)


def test_every_page_is_linked():
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    unlinked = {page.relative_to(ROOT).as_posix() for page in pages} - set(re.findall(r"\]\(([^)#]+)\)", README))
    assert unlinked == {"README.md"}


def test_tables_are_made_again_where_a_page_has_lost_them():
    """What stands between markers is replaced, not kept."""
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    without = re.sub(r"(:begin -->).*?(<!-- [\w ]+:end -->)", r"\1\2", page, flags=re.DOTALL)
    assert with_kernels(without, ROOT / "results") == page


def test_links_lead_somewhere():
    pages = {page: page.read_text(encoding="utf-8") for page in [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]}
    for page, text in (pages | generated(ROOT)).items():
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            assert link.startswith("http") or (page.parent / link).exists(), f"{page}: {link}"
