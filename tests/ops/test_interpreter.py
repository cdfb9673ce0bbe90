"""The tests of kernels where there is no GPU: in other processes, for Triton decides at import if it interprets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
KERNEL_TESTS = [file for file in sorted(HERE.glob("test_*.py")) if "\nINTERPRETED =" in file.read_text("utf-8")]
PROCESSES = 3  # each imports torch and Triton, which takes seconds; one alone would be the longest test of all


@pytest.mark.parametrize("number", range(PROCESSES))
def test_kernels_in_the_interpreter(number: int) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += [str(file) for file in KERNEL_TESTS[number::PROCESSES]]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, cwd=HERE.parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
