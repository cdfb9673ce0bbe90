"""Freed CPU memory stays with the process: pages are cleared once, not at every step."""

import platform
import subprocess
import sys

import pytest

_FAULTS_OF_TEN_STEPS = """
import resource, sys, torch
from transnormer.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
if sys.argv[1] == "bench":
    from transnormer.bench.ops import measure_ops
    next(measure_ops([64]))
def step(): torch.ones(16 * 2**20)  # 64 MB: above glibc's largest threshold
for _ in range(20): step()  # the heap grows to what it needs
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10): step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator only")
def test_a_buffer_that_is_freed_is_used_again():
    faults = {}
    for how in ("keep", "bench", "default"):
        command = [sys.executable, "-c", _FAULTS_OF_TEN_STEPS, how]
        faults[how] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert max(faults["keep"], faults["bench"]) * 5 < faults["default"], faults
