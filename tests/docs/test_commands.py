"""Commands in the pages have the options and keys that the program has; what they do is tested elsewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from transnormer.cli.app import app
from transnormer.config.load import check_overrides

ROOT = Path(__file__).resolve().parents[2]
# Records and the log name commands as they were typed then.
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands_in(text: str) -> list[str]:
    """Lines of code and `inline code` that call the program."""
    text = re.sub(r"<!-- ([\w ]+):begin -->.*?<!-- \1:end -->", "", text, flags=re.DOTALL)
    lines = re.findall(r"^(?:torchrun \S+ \S+ -m )?transnormer ([a-z].*)$", text, re.MULTILINE)
    return lines + re.findall(r"`transnormer ([a-z][^`]*)`", text)


COMMANDS = [(page.name, line) for page in PAGES if page.name != "results.md" for line in commands_in(page.read_text())]


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_options_and_keys_exist(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    command: Any = typer.main.get_command(app)  # typer brings a click of its own
    while hasattr(command, "commands") and words:
        name = words.pop(0)
        assert name in command.commands, f"{page}: transnormer has no {name}"
        command = command.commands[name]
    known = {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]}
    assert {word for word in words if word.startswith("--")} <= known | {"--help"}
    check_overrides(word for word in words if re.match(r"[a-z_]+(\.[a-z_]+)*=", word))


def test_pages_have_commands() -> None:
    assert len(COMMANDS) > 30


def test_a_wrong_option_and_an_old_key_are_found() -> None:
    with pytest.raises(AssertionError):
        test_options_and_keys_exist("a page", "bench speed --mode graph")
    with pytest.raises(Exception, match=r"train\.execution"):
        test_options_and_keys_exist("a page", "train demo --out run train.speed=graph")
