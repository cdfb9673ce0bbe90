"""Faults in what was typed are found before torch is loaded: none of these answers may wait for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
from transnormer.cli.app import main
try:
    main(sys.argv[1:])
except SystemExit as ending:
    heavy = {"torch", "transformers", "accelerate"} & sys.modules.keys()
    sys.exit(f"loaded {sorted(heavy)}" if heavy else ending.code)
"""


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train demo", "name the run folder"),
        ("train demoo --out new", "no recipe 'demoo'"),
        ("train demo --out new train.stepz=3", "train.stepz: no such key"),
        ("train demo --out new train.speed=graph", "train.speed is now train.execution"),
        ("train demo --out new lra.protocol=skyformer", "is a key of the lra tasks"),
        ("train demo --out new task=casual_lm", "unknown task 'casual_lm'"),
        ("train demo --out new model.preset=t2-tny", "unknown preset 't2-tny'"),
        ("train demo --out new model.preset=linformer-tiny", "linformer has no causal form"),
        ("train demo --out full", "full is not empty"),
        ("train demo --out run", "run already holds a run"),
        ("train demo --out run --dry-run", "run already holds a run"),
        ("resume new", "new does not exist"),
        ("resume full", "full is not a run folder"),
        ("resume broken", "train.stepz: no such key"),
        ("eval new", "new does not exist"),
        ("analyse recall new", "new does not exist"),
        ("analyse gradients --after 3", "--after is about the steps of runs"),
        ("eval run --carry --stride 4", "--carry reads without windows"),
        ("generate new", "new does not exist"),
        ("generate full", "neither a run folder nor a model folder"),
        ("export new --out other", "new does not exist"),
        ("export run --out full", "full exists already and is not empty"),
        ("data prepare", "Missing option '--out'"),
        ("data prepare pyton --out new", "unknown corpus 'pyton'"),
        ("data prepare python --out full", "full exists already"),
        ("data prepare lra/listops --out full", "full exists already"),
        ("data prepare lra/listop --out new", "unknown Long-Range Arena task 'lra/listop'"),
        ("reproduce nothing", "no table 'nothing'"),
        ("reproduce lra train.stepz=3", "train.stepz: no such key"),
        ("reproduce lra steps", "'steps' is not an override"),
        ("reproduce lra --methods t3", "unknown 't3'"),
        ("reproduce lra --tasks list", "unknown 'list'"),
        ("reproduce lra --setup tuend", "unknown set-up 'tuend'"),
        ("reproduce lra --seeds one", "--seeds: 'one' is not a number"),
        ("reproduce lra --table scaling", "--table: lra is one table"),
        ("reproduce ablations --table scalin", "no table 'scalin' in ablations"),
        ("reproduce ablations --table ffn --methods t2-block16", "--methods: unknown 't2-block16'"),
        ("reproduce table1 --table ffn", "--table ffn: table1 is scaling"),
        ("reproduce table7", "`transnormer bench speed --setting paper`"),
        ("reproduce tabel4", "did you mean 'table4'?"),
        ("reproduce all --tasks text", "--tasks text: each table has names of its own"),
        ("reproduce all --setup enwik", "unknown set-up 'enwik'"),
        ("demo train.stepz=3", "train.stepz: no such key"),
        ("bench sped", "No such command 'sped'"),
        ("bench speed --setting papr", "unknown setting 'papr'\nhint: did you mean 'paper'?"),
        ("bench speed --setting lm --methods linformer", "--methods: unknown 'linformer'"),
        ("bench speed --lengths 1x --out new.json", "--lengths: '1x' is not a number"),
        ("bench ops --lengths 0", "--lengths: '0' is not a number"),
        ("bench ops --device cuda --cases norm", "--cases: unknown 'norm'"),
        ("bench ops --device cuda --shapes LM", "--shapes: unknown 'LM'"),
        ("bench ops --device cuda --peers flexx", "--peers: unknown 'flexx'"),
        ("eval run --contexts 1x", "--contexts: '1x' is not a number"),
        ("train lm/text", "name the run folder"),
        ("train lm/text --out new", "no text files were given"),
        ("train demo --out new train.device=mps", "Apple GPUs (mps) are not supported"),
        ("data prepare full/x --out new", "'full/x' is no corpus"),
        ("data prepare full/x", "transnormer data prepare --text full/x --out store"),
        ("data prepare misspelt.txt --out new", "transnormer data prepare --text misspelt.txt --out new"),
        ("help trian", "no command 'trian'\nhint: did you mean 'train'?"),
        ("help data prepare python", "no command 'data prepare python'"),
        ("data prepare full --out new", "transnormer data prepare --text 'full/*' --out new"),
        ("data prepare --text full/x.md full/y.md full/z.md --out new", "--text 'full/*.md' --out new"),
        ("explain optimi", "did you mean 'optim'?"),
        ("explain vocab", "did you mean 'data.vocab_size'"),
        ("bench loss --vocabularies many", "--vocabularies: 'many' is not a number"),
        ("bench decode --preset t2", "unknown preset 't2'"),
        ("bench decode --against linformer-lm", "linformer has no causal form"),
        ("bench decode --contexts 1k,", "--contexts: '' is not a number"),
        ("explain train.stepz", "train.stepz"),
    ],
)
def test_what_was_typed_is_checked_before_torch_is_loaded(command: str, message: str, tmp_path: Path) -> None:
    """Nor is anything written."""
    refused(command, message, tmp_path, code=2)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train lm/text --out new data.store=full", "full is not a token store"),
        ("train lm/text --out new data.source=no.txt", "no.txt does not exist"),
        ("train lra/text --out new data.store=none", "none does not exist"),
        ("data prepare --text no.txt --out new", "no.txt does not exist"),
        ("data prepare --text no*.txt --out new", "no file matches 'no*.txt'"),
        ("eval run --text no*.txt", "no file matches 'no*.txt'"),
        ("data prepare wikitext103 --source full --out new", "wiki.train.tokens is missing"),
    ],
)
def test_data_that_are_missing_are_told_before_torch_is_loaded(command: str, message: str, tmp_path: Path) -> None:
    refused(command, message, tmp_path, code=5)


@pytest.mark.parametrize(
    "command",
    [
        "demo --out /proc/no",
        "export final --out /proc/no",
        "eval run --out /proc/no.json",
        "predict run --out /proc/no",
        "analyse gradients --out /proc/no",
        "analyse gradients run --out /proc/no",
        "data prepare python --out /proc/no",
    ],
)
def test_a_place_that_cannot_be_written_is_told_before_torch_is_loaded(command: str, tmp_path: Path) -> None:
    """In /proc not even root can."""
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "config.json").write_text("{}")
    refused(command, "cannot write /proc/no", tmp_path, code=6)


def refused(command: str, message: str, tmp_path: Path, code: int) -> None:
    """A command fails in these words in a folder with some runs, where it leaves nothing."""
    for name, file, text in (
        ("full", "x", ""),
        ("run", "config.yaml", "seed: 1\n"),
        ("broken", "config.yaml", "train:\n  stepz: 3\n"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(text)
    before = sorted(tmp_path.rglob("*"))
    done = without_torch(command, tmp_path)
    assert message in done.stdout + done.stderr
    assert done.returncode == code, done.stderr
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("kind", "name"), [("presets", "t2-lm"), ("recipes", "demo"), ("tasks", "lra/text"), ("tables", "lra")]
)
def test_what_can_be_named_is_listed_without_torch(kind: str, name: str, tmp_path: Path) -> None:
    done = without_torch(f"list {kind}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert name in [line.split()[0] for line in done.stdout.splitlines() if line.strip()]


FIRST_IMPORT = """
import os, sys, traceback
class First:
    def find_spec(self, name, path, target=None):
        if name == "torch":
            callers = [frame.name for frame in traceback.extract_stack()]
            os._exit(0 if "load_torch" in callers else 1)
sys.meta_path.insert(0, First())
from transnormer.cli.app import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    "command",
    [
        "train demo --out new",
        "data prepare --text full/x --out new",
        "list mixers",
        "doctor",
        "analyse gradients --out new",
        "analyse dilution model --text full/x",
        "analyse attention model --prompt word",
        "generate model",
    ],
)
def test_a_terminal_is_told_that_torch_is_loaded(command: str, tmp_path: Path) -> None:
    """It is imported by what says so."""
    for name, file, text in (("full", "x", "some words\n" * 200), ("model", "config.json", "{}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", FIRST_IMPORT, *command.split()],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def without_torch(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command, which fails where it loads torch."""
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, *command.split()],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "COLUMNS": "200", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
