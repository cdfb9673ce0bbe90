"""Help is quick, because it loads nothing heavy, and shows an example for each verb."""

from __future__ import annotations

import subprocess
import sys

import pytest

GROUPS = {
    "data": ["prepare", "show", "verify", "info"],
    "bench": ["ops", "speed", "decode"],
    "report": ["runs", "site"],
}
VERBS = [
    "demo",
    "train",
    "resume",
    "eval",
    "generate",
    "list",
    "explain",
    "doctor",
    "export",
    "reproduce",
    *GROUPS,
]
COMMANDS = [[verb] for verb in VERBS if verb not in GROUPS] + [[group, v] for group in GROUPS for v in GROUPS[group]]

# Run the command in a fresh process, then say which of the heavy packages it imported.
PROBE = """
import sys
from transnormer.cli.app import main
code = 0
try:
    main(sys.argv[1:])
except SystemExit as exit_:
    code = exit_.code or 0
heavy = {"torch", "transformers", "numpy", "accelerate", "tokenizers", "matplotlib"} & set(sys.modules)
print("HEAVY", sorted(heavy))
sys.exit(code)
"""


def probe(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, timeout=600)


def test_the_command_lists_its_verbs_and_imports_nothing_heavy() -> None:
    done = probe("--help")
    assert done.returncode == 0, done.stderr
    assert "HEAVY []" in done.stdout
    assert all(verb in done.stdout for verb in VERBS)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_each_verb_shows_an_example_and_imports_nothing_heavy(command: list[str]) -> None:
    done = probe(*command, "--help")
    assert done.returncode == 0, done.stderr
    assert "HEAVY []" in done.stdout
    assert f"Example: transnormer {' '.join(command)}" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["explain"],
        ["explain", "demo"],
        ["list", "recipes"],
        ["list", "tables"],
        ["train", "no/such"],
        ["reproduce", "no"],
    ],
)
def test_what_needs_no_model_imports_nothing_heavy(arguments: list[str]) -> None:
    assert "HEAVY []" in probe(*arguments).stdout


def test_module_and_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "transnormer", "--version"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0
    assert done.stdout.startswith("transnormer ")
