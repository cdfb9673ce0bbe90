"""The programs of examples/ do what they say, as a reader runs them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from page_blocks import ROOT

EXAMPLES = ROOT / "examples"


def printed(*arguments: str | Path) -> str:
    """What a Python process says on its standard output; it must succeed, and warn of nothing."""
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def code_of(notebook: Path) -> str:
    """The code cells of a notebook, one after the other."""
    cells = [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells), "strip the outputs"
    return "\n\n".join("".join(cell["source"]) for cell in cells)


def recalled(code: str) -> dict[str, int]:
    """What the notebook prints: percent of the queries that each model answers."""
    return {name: int(share) for name, share in re.findall(r"(\S+) +(\d+)%", printed("-c", code))}


def test_two_attentions_in_40_lines():
    code = code_of(EXAMPLES / "two_attentions.ipynb")
    assert len([line for line in code.splitlines() if line]) <= 40
    short = code.replace("STEPS, BATCH = 300,", "STEPS, BATCH = 5,")
    assert short != code
    assert recalled(short).keys() == {"llama-tiny", "t2-tiny"}


@pytest.mark.slow
def test_two_attentions_differ():
    shares = recalled(code_of(EXAMPLES / "two_attentions.ipynb"))
    # Softmax attention has learned the task; the other knows at least which values there were.
    assert shares["llama-tiny"] > 90 > shares["t2-tiny"] > 20


def test_a_model_of_ones_own():
    out = printed(EXAMPLES / "own_model.py", "--steps", "60")
    bits = [float(number) for number in re.findall(r": ([\d.]+) bits", out)]
    assert bits[0] > 7  # of 8, when nothing is known
    assert bits[-1] < 3.5


def test_a_model_of_ones_own_wants_a_window_of_text(tmp_path):
    (tmp_path / "short.txt").write_text("too short")
    done = subprocess.run(
        [sys.executable, EXAMPLES / "own_model.py", tmp_path / "short.txt"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "has 9 bytes, more than 128 are needed" in done.stderr


def test_long_context():
    out = printed(EXAMPLES / "long_context.py", "--context", "1024", "--new-tokens", "5")
    rows = [[int(number.replace(",", "")) for number in line.split()] for line in out.splitlines()[1:5]]
    tokens, ours, softmax = zip(*rows, strict=True)
    assert tokens == (256, 512, 768, 1024)
    assert len(set(ours)) == 1
    assert [size // softmax[0] for size in softmax] == [1, 2, 3, 4]
    assert len(re.findall(r"5 tokens behind", out)) == 2
