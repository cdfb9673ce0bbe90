"""`transnormer reproduce lra` as a user types it: once from fresh interpreters, and with all that can be wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from transnormer.data.lra.prepare import prepare

TINY = [
    "model.hidden_size=16",
    "model.intermediate_size=24",
    "optim.warmup_steps=1",
    "train.steps=2",
    "train.batch_size=2",
    "train.device=cpu",
]


@pytest.fixture(scope="module")
def text_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reviews")
    for part in ("train", "test"):
        (folder / f"{part}.tsv").write_text("\n".join(f"{number % 2}\tfilm {number}" for number in range(40)))
    return prepare("lra/text", folder / "data" / "text", source=folder)


@pytest.mark.parametrize(("setup", "folder"), [(None, "lra"), ("authors", "lra-authors")])
def test_one_job_as_a_user_types_it(
    setup: str | None, folder: str, tmp_path: Path, text_store: Path, forked_command: tuple[str, ...]
) -> None:
    """Once from fresh interpreters."""
    program = forked_command if setup else (sys.executable, "-m", "transnormer")
    command = [*program, "reproduce", "lra", "--methods", "t2", "--tasks", "text"]
    command += ["--setup", setup] if setup else []
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [*command, "--data", str(text_store.parent), "--seeds", "7", *TINY],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "results" / folder / "text-t2-7.json").read_text())
    assert record["seed"] == 7
    assert f"text-t2-7: test accuracy {100 * record['test']['metrics']['accuracy']:.2f}" in done.stdout
    assert record["recipe"] == ("lra/authors/text" if setup else "lra/text")
    assert "model.norm" not in record["changes"], "the recipe says so"
    assert f"table: results/{folder}/README.md" in done.stdout
    assert ("Recipes: `lra/authors/*`." in (tmp_path / "results" / folder / "README.md").read_text()) == bool(setup)
    assert (tmp_path / "runs" / folder / "text-t2-7" / "result.json").is_file()
    log = (tmp_path / "runs" / folder / "text-t2-7.log").read_text()
    assert "test split, once, with the best checkpoint" in log


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["--methods", "t3"], "--methods: unknown 't3'", "did you mean"),
        (["--tasks", "listop"], "--tasks: unknown 'listop'", "did you mean 'listops'?"),
        (["--setup", "author"], "--setup: unknown set-up 'author'", "did you mean 'authors'?"),
        (["--seeds", "forty-two"], "--seeds: 'forty-two' is not a number", "--seeds 42"),
        (["--jobs", "0"], "--jobs is 0", "--jobs 1"),
        (["--runner", "rai"], "--runner: unknown 'rai'", "did you mean 'ray'?"),
        (["--ray-address", "head:6379"], "--ray-address head:6379: jobs run on this machine", "add --runner ray"),
        (["--budget-minutes", "0"], "--budget-minutes is 0", "above 0"),
        (["--budget-minutes", "-5"], "--budget-minutes is -5", "above 0"),
        (["--budget-minutes", "nan"], "--budget-minutes is nan", "above 0"),
        (["--results", "file"], "--results: file is a file", "another --results"),
        (["--runs", "file"], "--runs: file is a file", "another --runs"),
        (["--data", "absent"], "--data: absent is not there", "folder of stores"),
        (["--data", "file"], "--data: file is a file", "folder of stores"),
        (["--tasks", "listops,image"], "lra/image cannot be generated", "data prepare lra/image --source PATH"),
        (["--tasks", "image", "--data", "."], ". has no 'image'", "--out image`, then --data ."),
        (["train.stepz=5"], "train.stepz: no such key", "train.steps"),
        (["train.steps=5"], "optim.warmup_steps (1000) must be smaller", "set both"),
        (["seed=5"], "seed differs from job to job", "--seeds"),
        (["train.device=cuda"], "torch sees no CUDA device", "train.device=auto"),
        (["data.store=text"], "was prepared for lra/text, the task is lra/listops", ""),
        (["data.store=absent"], "absent does not exist", ""),
        (["--tasks", "text", "--data", "nested"], "nested/text is not a store of examples", ""),
        (
            ["--tasks", "text", "--data", ".", "data.sequence_length=9"],
            "data.sequence_length: has no meaning",
            "leave it",
        ),
        (
            ["--tasks", "text", "--data", ".", "lra.limit_examples=9"],
            "lra.limit_examples: lra/text is prepared already, in text",
            "leave it out",
        ),
        (["--tasks", "text", "--data", ".", "model.embedding=number"], "tokens of lra/text are not amounts", "table"),
        (["data.sequence_length=9"], "all 17 jobs: data.sequence_length: has no meaning for lra/listops", "leave it"),
        (
            ["--methods", "t2", "train.execution=cuda_graph"],
            "train.execution=cuda_graph needs a CUDA device",
            "train.execution=auto",
        ),
        (["--methods", "vanilla", "model.num_attention_heads=3"], "listops-vanilla-42: ", "divides"),
        (
            ["model.mixer_options={diag: {block_size: 0}}"],
            "listops-t1-42, listops-t2-42: diag: block_size must be at least 2",
            "",
        ),
    ],
)
def test_bad_input_is_named_and_leaves_nothing(
    cli: Callable,
    tmp_path: Path,
    text_store: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    error: str,
    hint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "text").symlink_to(text_store)
    (tmp_path / "nested" / "text").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    if "--tasks" not in arguments:
        arguments = ["--tasks", "listops", *arguments]
    done = cli("reproduce", "lra", *arguments)
    lines = done.err.strip().splitlines()
    assert lines[0].startswith("error: ")
    assert error in lines[0]
    assert len(lines) <= 2
    assert hint in done.err
    assert done.code in (2, 5)
    assert done.out == ""
    assert sorted(tmp_path.rglob("*")) == before


def test_of_several_faults_each_has_its_lines(cli: Callable, tmp_path: Path, text_store: Path) -> None:
    (tmp_path / "text").symlink_to(text_store)
    selection = ["--methods", "t2,t1", "--tasks", "image,text", "--data", tmp_path, "model.num_attention_heads=64"]
    done = cli("reproduce", "lra", *selection, "--runs", tmp_path / "runs", "--results", tmp_path / "results")
    assert done.code == 2
    lines = done.err.strip().splitlines()
    assert len(lines) == 4
    assert lines[0] == f"error: image-t2-42, image-t1-42: lra/image cannot be generated, and {tmp_path} has no 'image'"
    assert lines[1].startswith("hint: `transnormer data prepare lra/image --source PATH")
    assert lines[2].startswith("error: text-t2-42, text-t1-42: position 'rope' needs an even head size")
    assert lines[3] == "hint: use position: none"


@pytest.mark.parametrize("name", ["lar", "pictures"])
def test_a_table_that_is_not_there_is_named(cli: Callable, name: str) -> None:
    done = cli("reproduce", name)
    assert done.code == 2
    assert f"error: no table '{name}'" in done.err
    assert "transnormer list tables" in done.err
    assert ("did you mean 'lra'?" in done.err) == (name == "lar")


def test_a_damaged_record_is_named(cli: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "listops-t2-42.json").write_text("{")
    done = cli("reproduce", "lra", "--tasks", "listops", "--methods", "t2", "--results", ".")
    assert done.code == 5
    assert "listops-t2-42.json is not JSON" in done.err


def test_sigterm_while_data_are_generated_leaves_nothing_and_can_be_taken_up_again(
    tmp_path: Path, forked_command: tuple[str, ...]
) -> None:
    command = [*forked_command, "reproduce", "lra", "--methods", "t2", "--tasks", "pathfinder"]
    process = subprocess.Popen(
        [*command, *TINY],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TRANSNORMER_CACHE": str(tmp_path / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    stores = tmp_path / "cache" / "stores"
    try:
        deadline = time.monotonic() + 300
        while not any(stores.glob(".*.partial-*/*")):
            assert time.monotonic() < deadline, "waited too long"
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=300)  # the end of the output, which the workers have open, too
    except subprocess.TimeoutExpired:
        pytest.fail("a worker is left")
    assert process.returncode == 75, err
    assert "stopped while the data of lra/pathfinder were generated" in err
    assert "hint: the same command" in err
    assert [path.suffix for path in stores.iterdir()] == [".lock"]
