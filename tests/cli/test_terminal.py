"""What a person at a terminal meets: 80 columns, -q and -v, help, completion, Ctrl-C, and commands to copy."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from transnormer.cli.console import print_table
from transnormer.errors import Preempted


def in_terminal(*arguments: str | Path, columns: int = 80) -> str:
    """What a command writes to a terminal of so many columns."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    with subprocess.Popen(
        [sys.executable, "-m", "transnormer", *map(str, arguments)], stdin=theirs, stdout=theirs, env=environment
    ) as process:
        os.close(theirs)
        written = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # Linux: the other end is closed
                break
            if not part:
                break
            written += part
        assert process.wait() == 0
    os.close(ours)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written.decode()).replace("\r", "")


@pytest.mark.parametrize("kind", ["mixers", "presets", "recipes", "tasks", "tables"])
def test_lists_fit_80_columns_and_cut_nothing(kind: str) -> None:
    shown = in_terminal("list", kind)
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown
    # No column so narrow that a sentence becomes a tower of words.
    assert sum(len(line.split()) == 1 for line in shown.splitlines()) < len(shown.splitlines()) / 2


def test_a_cell_is_whole_at_any_width(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    rows = [("first", "a sentence of some words", "x" * 20, "y" * 20), ("second", "another", "z" * 25, "")]
    for columns in (40, 60, 80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        print_table(["name", "about", "one", "two"], rows)
        shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
        assert max(map(len, shown.splitlines())) <= columns
        assert {"x" * 20, "y" * 20, "z" * 25} <= set(re.findall(r"x+|y{3,}|z+", shown))


def test_flags_are_not_shown_with_a_type(cli: Callable) -> None:
    for arguments in (["--help"], ["train", "--help"], ["data", "--help"], ["generate", "-h"]):
        done = cli(*arguments)
        assert done.code == 0
        assert "<bool>" not in done.out
    assert "<int" in done.out


def test_help_is_a_verb(cli: Callable) -> None:
    assert cli("help").out == cli("--help").out
    assert cli("help", "data", "prepare").out == cli("data", "prepare", "--help").out
    unknown = cli("help", "trian")
    assert unknown.code == 2
    assert "trian" in unknown.err


def test_shells_can_complete_what_has_a_name() -> None:
    def complete(words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "transnormer"],
            env={
                **os.environ,
                "_TRANSNORMER_COMPLETE": "complete_bash",
                "COMP_WORDS": words,
                "COMP_CWORD": str(words.count(" ")),
            },
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert complete("transnormer ge").split() == ["generate"]
    assert complete("transnormer train lm/te").split() == ["lm/text"]
    assert complete("transnormer train demo optim.warm").split() == ["optim.warmup_steps="]
    assert complete("transnormer explain optim.warm").split() == ["optim.warmup_steps"]
    assert complete("transnormer data prepare lra/pa").split() == ["lra/pathfinder"]
    assert complete("transnormer data prepare enwiki").split() == ["enwiki"]
    assert complete("transnormer reproduce table12").split() == ["table12"]
    assert complete("transnormer help data pre").split() == ["prepare"]


def test_show_completion(tmp_path: Path) -> None:
    """The shell is the process that asks."""
    script = tmp_path / "ask.sh"
    script.write_text(f"{sys.executable} -m transnormer --show-completion; echo rc $?\n")
    shown = subprocess.run(["bash", script], capture_output=True, text=True)
    assert "rc 0" in shown.stdout, shown.stdout + shown.stderr
    assert "_TRANSNORMER_COMPLETE" in shown.stdout


def test_quiet_is_the_outcome_alone_and_verbose_says_why(
    cli: Callable, tmp_path: Path, store: Path, tiny: list[str]
) -> None:
    quiet = cli("train", "lm/text", "--out", tmp_path / "quiet", f"data.store={store}", *tiny, "-q")
    assert quiet.code == 0
    assert quiet.err == ""
    assert not [line for line in quiet.out.splitlines() if line.startswith("step ")]
    usual = cli("train", "lm/text", "--out", tmp_path / "usual", f"data.store={store}", *tiny)
    assert "lm/text on a CPU, unless you say otherwise: " in usual.err.splitlines()[0]
    assert "model.preset=t2-tiny" in usual.err.splitlines()[0]
    assert [line for line in usual.out.splitlines() if line.startswith("step 1/4  loss ")]
    loud = cli("-v", "train", "lm/text", "--out", tmp_path / "loud", f"data.store={store}", *tiny)
    assert "train.steps: override train.steps=4" in loud.err
    assert "Traceback" in cli("train", "dmo", "--out", "x", "-v").err
    assert "Traceback" not in cli("train", "dmo", "--out", "x").err


def test_what_is_typed_need_fit_this_machine_only(cli: Callable, store: Path) -> None:
    """On a GPU 200 steps would be fewer than the recipe's warmup."""
    fits = cli("train", "lm/text", "--dry-run", f"data.store={store}", "train.device=cpu", "train.steps=200")
    assert fits.code == 0, fits.err
    assert "warmup_steps: 80" in fits.out
    never = cli("train", "lm/text", "--dry-run", f"data.store={store}", "train.device=cpu", "train.steps=20")
    assert never.code == 2
    assert "must be smaller than train.steps (20)" in never.err


def test_no_line_has_the_word_perplexity_of_a_byte_model(
    cli: Callable, tmp_path: Path, store: Path, tiny: list[str]
) -> None:
    done = cli("train", "demo", "--out", tmp_path / "run", f"data.store={store}", *tiny)
    assert "bits_per_byte" in done.out
    assert "word_perplexity" not in done.out
    scored = cli("eval", tmp_path / "run", "--split", "test")
    assert "bits_per_byte" in scored.out
    assert "word_perplexity" not in scored.out
    record = json.loads((tmp_path / "run" / "eval-final-test.json").read_text())
    assert record["metrics"]["word_perplexity"] > 1e6


def test_a_prompt_can_be_piped(cli: Callable, finished_run: Path) -> None:
    """Without the line end that `echo` puts last."""
    options = ["--max-new-tokens", "3", "--seed", "1", "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "transnormer", "generate", finished_run, "--prompt", "-", *options],
        input="the cat\n",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == cli("generate", finished_run, "--prompt", "the cat", *options).out
    assert done.stderr == ""


def test_a_prompt_that_is_no_text_is_refused(finished_run: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "transnormer", "generate", finished_run, "--prompt", "-"],
        input=b"\xff\xfe",
        capture_output=True,
    )
    assert done.returncode == 5
    assert done.stderr.startswith(b"error: --prompt -: standard input is not UTF-8 (byte 0)")


def test_ctrl_c_is_no_error_and_exits_with_130(finished_run: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "transnormer", "generate", finished_run, "--prompt", "-"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert "Ctrl-D" in process.stderr.readline()  # it waits for the prompt
        process.send_signal(signal.SIGINT)
        assert process.stderr.read().strip() == "stopped"
        assert process.wait() == 130
    os.close(ours)
    os.close(theirs)


SCRIPT = """
import signal, sys
loaded = sys.argv.pop(1)
class CtrlC:
    def find_spec(self, name, path, target=None):
        if name == loaded:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, CtrlC())
from transnormer.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("loaded", "command", "code", "said"),
    [
        ("transnormer.cli.app", "list tasks", 130, "stopped"),
        ("torch", "list mixers", 130, "stopped"),
        ("torch", "resume RUN train.steps=9", 75, "stopped by SIGINT before the first step; nothing is lost"),
    ],
)
def test_ctrl_c_while_something_is_loaded(loaded: str, command: str, code: int, said: str, finished_run: Path) -> None:
    words = [str(finished_run) if word == "RUN" else word for word in command.split()]
    done = subprocess.run([sys.executable, "-c", SCRIPT, loaded, *words], capture_output=True, text=True)
    assert done.stderr.partition("\nhint: ")[0].strip() == said
    assert done.returncode == code


def test_a_demo_that_is_stopped_goes_on_as_a_demo(cli: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*arguments: object) -> None:
        raise Preempted("stopped by SIGINT after step 3, which is saved", hint="`transnormer resume my demo/t2-tiny`")

    monkeypatch.setattr("transnormer.experiments.demo.train_twins", stopped)
    done = cli("demo", "--out", "my demo", "train.steps=90")
    assert "hint: `transnormer demo --out 'my demo' train.steps=90` goes on where it stopped" in done.err
    assert done.code == 75


@pytest.mark.parametrize("word", ["lr", "optim.lr"])
def test_a_key_is_found_by_its_last_word(cli: Callable, word: str) -> None:
    assert cli("explain", word).out.startswith("optim.lr\n  peak learning rate")


def test_a_recipe_is_explained_for_both_devices(cli: Callable) -> None:
    rows = {line.split()[0]: line for line in cli("explain", "lm/text").out.splitlines() if line.strip()}
    assert rows["key"].split()[-3:] == ["on", "a", "CPU"]
    assert "t2-lm" in rows["model.preset"]
    assert rows["model.preset"].split()[-1] == "t2-tiny"
    assert "on a CPU" not in cli("explain", "lm/enwiki").out
    assert rows["seed"].split()[-1] == "default"
    larger = cli("explain", "lm/text", "optim.warmup_steps=1200")  # more than the steps on a CPU
    assert larger.code == 0, larger.err
    assert "on a CPU" not in larger.out


def test_eval_takes_a_pattern(cli: Callable, finished_run: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(f"words of {name} " * 50)
    done = cli("eval", finished_run, "--text", tmp_path / "*.txt", "--out", tmp_path / "scores.json")
    assert done.code == 0, done.err
    assert sorted(Path(each).name for each in json.loads((tmp_path / "scores.json").read_text())["texts"]) == [
        "a.txt",
        "b.txt",
    ]


def test_a_file_in_the_place_of_a_corpus(cli: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is proposed works as it stands."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my text.txt").write_text("some words of mine\n" * 200)
    done = cli("data", "prepare", "my text.txt", "--out", "my store")
    assert done.code == 2
    proposed = shlex.split(done.err.partition("hint: ")[2])
    assert "--text" in proposed
    assert cli(*proposed[1:], "--tokenizer", "byte").code == 0


def test_the_printed_commands_work_as_typed(
    cli: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: list[str]
) -> None:
    """From one's own text to generated text, in a folder with a space in its name."""
    (tmp_path / "my work").mkdir()
    monkeypatch.chdir(tmp_path / "my work")
    Path("a.txt").write_text("some words of mine\n" * 300)
    prepared = cli("data", "prepare", "--text", "a.txt", "--tokenizer", "byte", "--out", "my store")
    use = shlex.split(prepared.out.splitlines()[-1].removeprefix("use it: "))
    assert "model.preset=t2-tiny" in use
    small = [each for each in tiny if not each.startswith(("data.sequence_length", "train.device"))]
    use[use.index("run")] = "my run"
    trained = cli(*use[1:], *small)
    assert trained.code == 0, trained.err
    for line in trained.out.splitlines()[-2:]:
        verb = shlex.split(line.rpartition(": ")[2])
        assert cli(*verb[1:], *(["--max-new-tokens", "3"] if verb[1] == "generate" else [])).code == 0
    again = cli("train", "demo", "--out", "my run")
    assert "`transnormer resume 'my run'`" in again.err


@pytest.mark.parametrize("verb", ["resume", "eval", "generate"])
def test_who_names_no_run_is_told_which_there_are(
    cli: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for run in ("runs/one", "other place/two"):
        Path(run).mkdir(parents=True)
        Path(run, "config.yaml").write_text("seed: 1\n")
    assert "runs there are: runs/one\n" in cli(verb, "on").err
    assert "'other place/two'" in cli(verb, "other place/tow").err
    assert cli(verb, "on").code == 2
    assert cli(verb, tmp_path / "runs" / "on").err.endswith("runs/one\n"), "once, whatever the ways to it"


@pytest.mark.parametrize(
    "words",
    [
        "report runs on --out page.html",
        "report site --runs on --out site",
        "analyse gradients on --out figures",
        "train demo --out new model.init=on",
    ],
)
def test_who_reads_runs_is_told_which_there_are_too(
    cli: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs/one").mkdir(parents=True)
    Path("runs/one/config.yaml").write_text("seed: 1\n")
    done = cli(*words.split())
    assert "runs there are: " in done.err
    assert done.err.endswith("runs/one\n")
    assert done.code == 2


def test_a_missing_file_an_unmatched_pattern_and_a_permission_are_one_kind(
    cli: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All three are about data that cannot be read, and none about room on the disk."""
    monkeypatch.chdir(tmp_path)
    locked = tmp_path / "locked.txt"
    locked.write_text("mine\n" * 100)
    reachable = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != Path("locked.txt") and reachable(path, mode))
    for text, told in (("no.txt", "does not exist"), ("no*.txt", "no file matches"), ("locked.txt", "cannot read")):
        done = cli("data", "prepare", "--text", text, "--tokenizer", "byte", "--out", "store")
        assert done.code == 5, done.err
        assert told in done.err
        assert "hint: check " in done.err
        assert "space" not in done.err
        assert "room" not in done.err
    assert not (tmp_path / "store").exists()
