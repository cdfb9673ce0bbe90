"""A person's first hour: the built wheel in an empty environment, and there from a text to a model that others score.

`pytest -m slow -s tests/test_first_hour.py` shows how long each command took.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness_task import NAME, write_task

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Shell:
    """A terminal in a folder of its own, in which an environment is active."""

    bin: Path
    folder: Path

    def __call__(self, line: str) -> str:
        """The standard output of a command, which must succeed."""
        program, *words = shlex.split(line)
        # Nothing of this checkout may be found but by what is installed.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"HF_HOME": str(self.folder / "hf"), "TRANSNORMER_CACHE": str(self.folder / "cache")}
        began = time.perf_counter()
        done = subprocess.run(
            [self.bin / program, *words], cwd=self.folder, env=environment, capture_output=True, text=True
        )
        print(f"{time.perf_counter() - began:6.1f} s  {line}")
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", folder, ROOT], check=True)
    (built,) = folder.glob("transnormer-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin/ of an environment with the wheel; what it depends on is lent from ours, the checkout is not.

    A path in a .pth file is searched for packages, and .pth files there, as that of an editable install, are not read.
    """
    environment = tmp_path_factory.mktemp("first") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    programs = environment / "bin"
    pip = [sys.executable, "-m", "pip", "--python", programs / "python"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return programs


@pytest.fixture
def shell(installed: Path, tmp_path: Path) -> Shell:
    return Shell(installed, tmp_path)


def test_the_wheel_holds_the_whole_package(wheel: Path) -> None:
    """Recipes, templates and the type marker, too."""
    files = (file for file in (ROOT / "transnormer").rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    there = {file.relative_to(ROOT).as_posix() for file in files}
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == there
    assert {Path(name).suffix for name in packed} >= {".py", ".yaml", ".html", ".md", ".typed"}


def test_an_empty_environment_has_all_it_needs(shell: Shell, wheel: Path) -> None:
    place = Path(shell("python -c 'import transnormer; print(transnormer.__file__)'").strip())
    assert place.is_relative_to(shell.bin.parent)
    assert not place.is_relative_to(ROOT)
    report = shell("transnormer doctor")
    assert "all is well" in report
    assert str(shell.bin) in report.replace("\n", "")
    assert f"transnormer {wheel.name.split('-')[1]}" in re.sub(" +", " ", report)


@pytest.mark.slow
def test_from_a_text_to_a_model_that_others_score(shell: Shell) -> None:
    """Every command as its predecessor, or the tutorial, says it; a trial of some steps in the place of a real run."""
    (shell.folder / "my text").mkdir()
    pages = [page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md"))]
    (shell.folder / "my text" / "book.txt").write_text("\n".join(pages), encoding="utf-8")

    shell("transnormer doctor")
    *_, last = shell('transnormer data prepare --text "my text/*.txt" --out store').splitlines()
    command = last.removeprefix("use it: ")
    assert command.startswith("transnormer train lm/text --out run ")
    trained = shell(f"{command} train.device=cpu train.steps=20 optim.warmup_steps=2 data.eval_windows=8")
    assert "write with it: transnormer generate run" in trained
    shell("transnormer resume run train.steps=25")
    losses = [line["loss"] for line in journal(shell.folder / "run") if line["kind"] == "train"]
    assert losses[-1] < 0.8 * math.log(256)  # a model that knows nothing of a byte

    written = shell('transnormer generate run --prompt "The attention" --max-new-tokens 40')
    assert written.startswith("The attention")
    assert len(written.strip()) > len("The attention")
    shell("transnormer eval run --split test")
    shell('transnormer eval run --text "my text/book.txt" --carry')
    shell("transnormer export run --out my-model --license cc-by-4.0")
    assert "cc-by-4.0" in (shell.folder / "my-model" / "README.md").read_text(encoding="utf-8")

    write_task(shell.folder, pages[0][:2000])
    shell(
        "python -m lm_eval run --model hf --model_args pretrained=my-model,trust_remote_code=True,max_length=256 "
        f"--include_path . --tasks {NAME} --device cpu --output_path scores"
    )
    (scores,) = (shell.folder / "scores").rglob("results_*.json")
    bits = json.loads(scores.read_text())["results"][NAME]["bits_per_byte,none"]
    assert 1 < bits < 8  # of 8, when nothing is known


def journal(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
