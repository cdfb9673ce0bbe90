"""The README tells the truth: everything under Usage runs, in order, as written; its table comes from results/."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from transnormer.report.kernel_tables import with_kernels
from transnormer.report.readme import with_results

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


def test_usage(folder_of_a_user):
    blocks = usage_blocks()
    assert [language for language, _ in blocks] == ["python", "bash", "python"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    for language, code in blocks:
        command = [sys.executable, "-c", code] if language == "python" else ["bash", "-euc", code]
        done = subprocess.run(command, cwd=folder_of_a_user, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"


def test_the_two_commands_exist():
    targets = re.findall(r"^make (\w+)", README, re.MULTILINE)
    assert targets == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_the_table_is_generated_from_the_result_files():
    assert with_results(README, ROOT / "results") == README, "run `make readme`"


def test_the_tables_of_kernels_are_generated_too():
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    without, tables = re.subn(r"(:begin -->).*?(<!-- [\w ]+:end -->)", r"\1\2", page, flags=re.DOTALL)
    assert tables == 2
    assert with_kernels(without, ROOT / "results") == page, "run `make readme`"
