"""Code blocks of pages, run as a reader would."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from page_blocks import ROOT


@pytest.fixture
def run_blocks(tmp_path, forked_command) -> Callable[[Sequence[tuple[str, str]]], None]:
    """Runs blocks one after the other in a folder as a reader has it, with the files that the examples name.

    The command line runs without the imports of each command; that it is installed is the packaging's to see.
    """
    for name in ("docs", "examples", "README.md", "CONTRIBUTING.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    command = tmp_path / "bin" / "transnormer"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.join(forked_command)} "$@"\n')
    command.chmod(0o755)
    path = os.pathsep.join([str(command.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    # transformers copies the loader file of a model folder into its cache.
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "HF_HOME": str(tmp_path / "cache")}

    def run(blocks: Sequence[tuple[str, str]]) -> None:
        for language, code in blocks:
            program = [sys.executable, "-c", code] if language == "python" else ["bash", "-euc", code]
            done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"

    return run
