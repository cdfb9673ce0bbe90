"""Files of a run that are gone, edited or of another shape: never a silent restart, never a traceback."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from lra_files import SOURCES
from real_runs import Case, Forks, fingerprint
from safetensors.torch import load_file, save_file
from tiny_run import journal_lines, losses, weights_hash

from transnormer.data.lra.prepare import prepare
from transnormer.train.checkpoint import MANIFEST, _self_hash, verify


def reseal(folder: Path, change: Callable[[dict], object]) -> None:
    """Change a manifest so that it still agrees with its own hash."""
    manifest = json.loads((folder / MANIFEST).read_text())
    del manifest["manifest_sha256"]
    change(manifest)
    (folder / MANIFEST).write_text(json.dumps({**manifest, "manifest_sha256": _self_hash(manifest)}))


@pytest.mark.reliability("R3")
@pytest.mark.parametrize("kept", ["best.json", "journal.jsonl"])
def test_deleted_checkpoints_are_no_fresh_start(stopped_case: Case, kept: str) -> None:
    shutil.rmtree(stopped_case.run / "checkpoints")
    for name in {"best.json", "journal.jsonl"} - {kept}:
        (stopped_case.run / name).unlink()
    (stopped_case.run / "lock").write_text("")
    before = fingerprint(stopped_case.run)
    assert stopped_case.resume() == 3
    assert "are gone" in stopped_case.forks.output
    assert fingerprint(stopped_case.run) == before


def test_a_deleted_folder_of_checkpoints_is_seen_where_nothing_was_logged(case: Case) -> None:
    """The journal has no line of a step yet, and there was no evaluation."""
    fault = ("at_file_operation", {"run": str(case.run), "step": 3, "number": 0, "signals": [9]})
    assert case.train(fault) == -9
    journal = case.run / "journal.jsonl"
    journal.write_text("".join(line for line in journal.read_text().splitlines(True) if '"train"' not in line))
    (case.run / "checkpoints").rmdir()
    assert case.resume() == 3
    assert "their folder was there when the journal began" in case.forks.output


@pytest.mark.parametrize("step", [6, 9], ids=["older", "newest"])
def test_a_link_is_no_checkpoint(stopped_case: Case, step: int) -> None:
    """The older one goes when it is due, the newest is put aside; what is behind it stays."""
    link = stopped_case.run / "checkpoints" / f"step-{step:08d}"
    elsewhere = link.rename(stopped_case.run.with_name("elsewhere"))
    link.symlink_to(elsewhere)
    before = fingerprint(elsewhere)
    assert stopped_case.resume() == 0, stopped_case.forks.output
    stopped_case.require_equal_end()
    assert not link.is_symlink()
    assert ("is a symbolic link" in stopped_case.forks.output) == (step == 9)
    assert fingerprint(elsewhere) == before


def test_a_run_that_died_before_its_first_checkpoint_starts_anew(case: Case) -> None:
    fault = ("at_file_operation", {"run": str(case.run), "step": 3, "number": 0, "signals": [9]})
    assert case.train(fault) == -9
    assert losses(case.run)[-1][0] == 3
    assert case.resume() == 0, case.forks.output
    case.require_equal_end()


@pytest.mark.reliability("R18")
@pytest.mark.parametrize("kept", [None, 0, 3], ids=["deleted", "emptied", "cut"])
def test_lines_of_a_journal_that_are_gone_are_noted(stopped_case: Case, kept: int | None) -> None:
    journal = stopped_case.run / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.unlink()
    if kept is not None:
        journal.write_text("".join(lines[:kept]))
    assert stopped_case.resume() == 0, stopped_case.forks.output
    assert "the lines up to there are lost" in stopped_case.forks.output
    [line] = journal_lines(stopped_case.run, "lost")
    assert "step 9" in line["text"]
    assert weights_hash(stopped_case.run) == weights_hash(stopped_case.undisturbed)


def test_a_config_edited_before_the_first_checkpoint_is_refused(case: Case) -> None:
    fault = ("at_file_operation", {"run": str(case.run), "step": 3, "number": 0, "signals": [9]})
    assert case.train(fault) == -9
    config = case.run / "config.yaml"
    original = config.read_text()
    config.write_text(original.replace("lr: 0.01", "lr: 0.5"))
    assert case.resume() == 3
    assert "optim.lr was 0.01, is 0.5" in case.forks.output
    config.write_text(original)
    assert case.resume() == 0, case.forks.output
    case.require_equal_end()


def test_an_emptied_config_is_not_that_of_defaults(case: Case) -> None:
    shutil.copytree(case.undisturbed, case.run)
    (case.run / "config.yaml").write_text("")
    for command in ("eval", "resume"):
        assert case.forks.run(command, case.run) == 2, case.forks.output
        assert "config.yaml is empty" in case.forks.output


@pytest.mark.parametrize("content", ["nonsense", "[1]", "{}", '{"step": "x"}', "[" * 100_000, '{"step": null}'])
def test_a_damaged_best_json_is_said(stopped_case: Case, content: str) -> None:
    (stopped_case.run / "best.json").write_text(content)
    assert stopped_case.forks.run("generate", stopped_case.run, "--checkpoint", "best") == 3
    assert "best.json is damaged" in stopped_case.forks.output
    assert stopped_case.resume() == 0, stopped_case.forks.output
    stopped_case.require_equal_end()


STRANGE_LINES = [
    '{"kind": ["a"], "step": 1}',
    '{"kind": "train", "step": "x"}',
    '{"kind": "train"}',
    '{"kind": "train", "step": 2, "loss": [], "tokens": 1}',
    '{"kind": "train", "step": 2, "loss": 1.0, "tokens": 1}',
    '{"kind": "train", "step": 2, "loss": 1.0, "grad_norm": 1.0, "tokens": 1, "layer_grad_norms": {"layer 0": []}}',
    '{"kind": "eval", "step": 6, "metrics": []}',
    '{"kind": "eval", "step": 6, "metrics": {}}',
    '{"kind": "note", "step": {}}',
    "[" * 100_000,
]


@pytest.mark.reliability("R18")
@pytest.mark.parametrize("line", STRANGE_LINES, ids=lambda line: line[-40:])
def test_a_journal_line_of_another_shape_is_noted_and_passed_over(stopped_case: Case, line: str) -> None:
    journal = stopped_case.run / "journal.jsonl"
    journal.write_text(f"{line}\n{journal.read_text()}")
    assert stopped_case.forks.run("report", stopped_case.run) == 5
    assert "journal.jsonl:1" in stopped_case.forks.output
    assert stopped_case.resume() == 0, stopped_case.forks.output
    stopped_case.require_equal_end()
    assert journal_lines(stopped_case.run, "unreadable")[0]["line"] == 1


@pytest.mark.reliability("R3")
@pytest.mark.parametrize("field", ["step", "files", "size", "sha256"])
def test_a_resealed_manifest_without_its_fields_is_a_broken_checkpoint(stopped_case: Case, field: str) -> None:
    def change(manifest: dict) -> None:
        for part in [manifest, *manifest["files"].values()]:
            part.pop(field, None)

    reseal(stopped_case.run / "checkpoints" / "step-00000009", change)
    assert stopped_case.resume() == 0, stopped_case.forks.output
    stopped_case.require_equal_end()
    assert (stopped_case.run / "quarantine" / "step-00000009").is_dir()


def change_sealed_state(stopped_case: Case, change: Callable[[dict], object]) -> None:
    """The state of the newest checkpoint, so that it still agrees with the manifest."""
    folder = stopped_case.run / "checkpoints" / "step-00000009"
    state = json.loads((folder / "state.json").read_text())
    change(state)
    content = json.dumps(state).encode()
    (folder / "state.json").write_bytes(content)
    facts = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    reseal(folder, lambda manifest: manifest["files"].update({"state.json": facts}))
    verify(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [("best", {"step": "x"}), ("config", None), ("excluded", "abc"), ("step", -1), ("tokens", "x"), ("unknown", 1)],
)
def test_a_resealed_state_of_another_shape_is_said(stopped_case: Case, key: str, value: object) -> None:
    change_sealed_state(stopped_case, lambda state: state.update({key: value}))
    assert stopped_case.resume() == 3
    assert "is not the state of a run" in stopped_case.forks.output
    assert key in stopped_case.forks.output


def test_resealed_weights_of_another_model_are_said_in_a_line(stopped_case: Case) -> None:
    folder = stopped_case.run / "checkpoints" / "step-00000009"
    file = folder / "model.safetensors"
    save_file({f"x.{name}": tensor for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})
    facts = {"size": file.stat().st_size, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    reseal(folder, lambda manifest: manifest["files"].update({file.name: facts}))
    assert stopped_case.resume() == 3
    (error,) = (line for line in stopped_case.forks.output.splitlines() if "does not fit this model" in line)
    assert len(error) < 500


def test_a_resealed_state_of_another_step_is_said(stopped_case: Case) -> None:
    """Without one it would be that of a run that has not begun, with the weights of one that has."""
    change_sealed_state(stopped_case, lambda state: state.pop("step"))
    assert stopped_case.resume() == 3
    assert "is the state after step 0, and its folder has another step" in stopped_case.forks.output


@pytest.mark.parametrize("content", ["", "[]", "[" * 100_000])
def test_a_damaged_record_of_what_ran_is_no_reason_to_stop(stopped_case: Case, content: str) -> None:
    (stopped_case.run / "environment.json").write_text(content)
    assert stopped_case.resume() == 0, stopped_case.forks.output
    stopped_case.require_equal_end()
    [began, _] = json.loads((stopped_case.run / "result.json").read_text())["segments"]
    assert began == {"after": 0, "date": None, "command": None, "commit": None}


@pytest.mark.parametrize("content", ["[]", "{}", '{"steps": 12, "best": null, "metrics": {}}'])
def test_a_result_of_another_shape_is_said(case: Case, content: str) -> None:
    shutil.copytree(case.undisturbed, case.run)
    (case.run / "result.json").write_text(content)
    for command in ("resume", "report"):
        assert case.forks.run(command, case.run) == 5, case.forks.output
        assert "result.json is damaged" in case.forks.output


@pytest.fixture(scope="module")
def lra_run(forks: Forks, memory: Path) -> Path:
    """A run of a task that tests its best checkpoint, killed before it wrote its result, its best not its newest."""
    store = prepare("lra/listops", memory / "lra-store", source=SOURCES["lra/listops"](memory / "lra-source"))
    run = memory / "lra"
    sizes = ["model.hidden_size=8", "model.num_hidden_layers=1", "model.num_attention_heads=1", "train.batch_size=2"]
    often = ["train.steps=4", "train.eval_every=1", "train.save_every=1", "train.keep_last=1", "train.device=cpu"]
    rate = ["optim.lr=1e-8", "optim.warmup_steps=0"]  # so small that no later evaluation is better than the first
    assert forks.run("train", "lra/listops", "--out", run, f"data.store={store}", *sizes, *often, *rate) == 0
    assert json.loads((run / "best.json").read_text())["step"] == 1
    (run / "result.json").unlink()
    return run


@pytest.mark.parametrize("fate", ["broken", "gone"])
def test_a_run_whose_best_checkpoint_is_lost_finishes_with_the_best_there_is(
    forks: Forks, lra_run: Path, scratch: Path, fate: str
) -> None:
    run = scratch / "run"
    shutil.copytree(lra_run, run)
    best = run / "checkpoints" / "step-00000001"
    if fate == "broken":
        weights = bytearray((best / "model.safetensors").read_bytes())
        weights[-1] ^= 1
        (best / "model.safetensors").write_bytes(weights)
    else:
        shutil.rmtree(best)
    assert forks.run("resume", run) == 0, forks.output
    result = json.loads((run / "result.json").read_text())
    assert result["test"]["step"] == result["best"]["step"] == json.loads((run / "best.json").read_text())["step"] == 4
    assert "step-00000001" in journal_lines(run, "quarantined")[0]["text"]
    assert [line["step"] for line in journal_lines(run, "eval")] == [1, 2, 3, 4]
    assert (run / "quarantine" / "step-00000001").is_dir() == (fate == "broken")
