"""The programs of examples/ do what they say, as a reader runs them."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from page_blocks import ROOT

import transnormer as tn
from transnormer.data.tokenizers import byte_tokenizer

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


def refused(*arguments: str | Path) -> str:
    """The error of a program that is called in a wrong way: the last line, behind how it is called."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1].partition("error: ")[2]


def test_a_model_of_ones_own_wants_a_window_of_text(tmp_path: Path):
    (tmp_path / "short.txt").write_text("too short")
    program = EXAMPLES / "own_model.py"
    assert refused(program, tmp_path / "short.txt").endswith("has 9 bytes, more than 128 are needed")
    assert refused(program, "absent.txt") == "cannot read absent.txt: No such file or directory"


def test_long_context():
    out = printed(EXAMPLES / "long_context.py", "--context", "1024", "--new-tokens", "5")
    table, read, written = re.split("\n--- the (?:text ends|model writes):\n", out)
    assert read.strip() in Path(argparse.__file__).read_text()
    assert 1 <= len(written.strip("\n")) <= 5
    rows = [[int(number.replace(",", "")) for number in line.split()] for line in out.splitlines()[1:5]]
    tokens, ours, softmax = zip(*rows, strict=True)
    assert tokens == (256, 512, 768, 1024)
    assert len(set(ours)) == 1
    assert [size // softmax[0] for size in softmax] == [1, 2, 3, 4]
    assert len(re.findall(r"5 tokens behind", table)) == 2


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder as `transnormer export` writes it."""
    folder = tmp_path_factory.mktemp("exported")
    tn.TransNormerForCausalLM(tn.preset("t2-tiny")).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def test_long_context_of_a_model_and_a_text_of_ones_own(exported: Path, tmp_path: Path):
    (tmp_path / "sonnet.txt").write_text("Shall I compare thee to a summer’s day?\n" * 8, encoding="utf-8")
    program, text = EXAMPLES / "long_context.py", ("--text", tmp_path / "sonnet.txt")
    done = subprocess.run([sys.executable, program, exported, *text, "--context", "200"], capture_output=True)
    assert done.returncode == 0
    assert b"\n--- the text ends:\n" in done.stdout
    assert "Shall I compare thee to a summer’s day?\n".encode() in done.stdout
    assert refused(program, *text) == "the text has 336 tokens: lower --context, which is 4,096"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--context", "10"], "--context must be at least 100, and --new-tokens at least 1"),
        (["--new-tokens", "0"], "--context must be at least 100, and --new-tokens at least 1"),
        (["absent"], "absent is no exported model: it has no config.json"),
        (["--text", "absent.txt"], "[Errno 2] No such file or directory: 'absent.txt'"),
    ],
)
def test_long_context_says_in_a_line_what_is_wrong(arguments: list[str], error: str):
    assert refused(EXAMPLES / "long_context.py", *arguments) == error


def test_long_context_of_a_folder_without_a_tokenizer(exported: Path, tmp_path: Path):
    (tmp_path / "config.json").write_bytes((exported / "config.json").read_bytes())
    assert refused(EXAMPLES / "long_context.py", tmp_path).endswith("is no exported model: it has no tokenizer.json")
