"""Every kernel compiles for an H200, which is found out where there is none, and hardly spills."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from compile_for_hopper import SHARED_MEMORY

MOST_SPILLED = (
    640  # bytes a thread; the worst is the causal forward of heads of 128 with every option, nearly all have 0
)


def compile_kernels(folder: Path, *arguments: str) -> set[str]:
    """The names of what was compiled."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder), "TRITON_INTERPRET": "0"}
    command = [sys.executable, str(Path(__file__).with_name("compile_for_hopper.py")), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = re.findall(r"^(.*): kernel (\w+), shared (\d+), registers (\d+), spilled (\d+)$", done.stdout, re.MULTILINE)
    assert len(rows) == len(done.stdout.splitlines())
    for name, kernel, shared, _, spilled in rows:
        assert int(shared) <= SHARED_MEMORY, name
        assert int(spilled) <= MOST_SPILLED, f"{kernel} of {name} spills {spilled} bytes"
    return {kernel for _, kernel, *_ in rows}


def test_the_attentions_compile_for_an_h200(tmp_path):
    names = {"causal_forward", "causal_backward", "causal_dq", "full_forward", "full_backward", "scan_segments"}
    assert names | {"block_forward", "block_backward"} <= compile_kernels(tmp_path, "--attention")


def test_every_other_kernel_compiles_for_an_h200(tmp_path):
    assert {"_forward", "_backward", "_score_row", "_norm", "_diag"} <= compile_kernels(tmp_path, "--rest")


@pytest.mark.slow
def test_every_kernel_compiles_for_an_h200_with_every_option(tmp_path):
    compile_kernels(tmp_path)
