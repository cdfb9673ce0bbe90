"""Damaged checkpoints: found before any tensor is used, set aside with the reason, and never a reason to start over."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from real_runs import Case, fingerprint
from tiny_run import journal_lines


def flip(share: float) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[int(len(content) * share)] ^= 0x10
        path.write_bytes(content)

    return damage


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


DAMAGES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "flip in the weights": ("model.safetensors", flip(0.9)),
    "flip in the weights' header": ("model.safetensors", flip(0.01)),
    "flip in the optimizer": ("optimizer.safetensors", flip(0.5)),
    "flip in the state": ("state.json", flip(0.2)),
    "flip in the manifest": ("manifest.json", flip(0.4)),
    "weights one byte short": ("model.safetensors", truncate),
    "empty optimizer": ("optimizer.safetensors", lambda path: path.write_bytes(b"")),
    "no state": ("state.json", Path.unlink),
    "no manifest": ("manifest.json", Path.unlink),
}


@pytest.mark.reliability("R3")
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_newest_checkpoint_is_set_aside_and_the_one_before_is_used(damage: str, stopped_case: Case) -> None:
    name, inflict = DAMAGES[damage]
    inflict(stopped_case.run / "checkpoints" / "step-00000009" / name)
    assert stopped_case.resume() == 0, stopped_case.forks.output
    stopped_case.require_equal_end()
    [aside] = (stopped_case.run / "quarantine").iterdir()
    assert aside.name == "step-00000009"
    assert name in (aside / "reason.txt").read_text()
    assert name in journal_lines(stopped_case.run, "quarantined")[0]["text"]
    assert [line["step"] for line in journal_lines(stopped_case.run, "resumed")] == [6]


def cut_to(share: float) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_link(path: Path) -> None:
    elsewhere = path.parents[3] / f"{path.name}.elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


SHAPES: dict[str, Callable[[Path], None]] = {
    "empty": cut_to(0.0),
    "one byte": lambda path: path.write_bytes(path.read_bytes()[:1]),
    "half": cut_to(0.5),
    "99 %": cut_to(0.99),
    "gone": Path.unlink,
    "a folder": replace_by_folder,
    "a link": replace_by_link,
}


@pytest.mark.reliability("R3")
@pytest.mark.parametrize("shape", SHAPES)
def test_any_file_of_a_checkpoint_in_any_shape(
    stopped_case: Case, scratch: Path, shape: str, at_full_figures: bool, count_cases: Callable[[int], None]
) -> None:
    newest = Path("checkpoints") / "step-00000009"
    names = sorted(path.name for path in (stopped_case.run / newest).iterdir())
    chosen = names if at_full_figures else [names[list(SHAPES).index(shape) % len(names)]]
    count_cases(len(chosen))
    for name in chosen:
        case = Case(stopped_case.forks, stopped_case.recipe, stopped_case.undisturbed, scratch / name / "run")
        shutil.copytree(stopped_case.run, case.run)
        SHAPES[shape](case.run / newest / name)
        assert case.resume() == 0, (name, case.forks.output)
        case.require_equal_end()
        assert name in journal_lines(case.run, "quarantined")[0]["text"]
        assert [line["step"] for line in journal_lines(case.run, "resumed")] == [6]


def test_undamaged_newest_checkpoint_is_used(stopped_case: Case) -> None:
    assert stopped_case.resume() == 0, stopped_case.forks.output
    stopped_case.require_equal_end()
    assert [line["step"] for line in journal_lines(stopped_case.run, "resumed")] == [9]


@pytest.mark.reliability("R3")
def test_none_valid_is_exit_3_and_never_a_fresh_start(stopped_case: Case) -> None:
    for folder in (stopped_case.run / "checkpoints").iterdir():
        flip(0.5)(folder / "model.safetensors")
    journal = (stopped_case.run / "journal.jsonl").read_bytes()
    for _ in range(2):
        assert stopped_case.resume() == 3
        assert "error" in stopped_case.forks.output
        assert (stopped_case.run / "journal.jsonl").read_bytes() == journal
        assert not (stopped_case.run / "final").exists()
    # Both are still there, so a checkpoint that is restored from a backup can be put back.
    assert len(list((stopped_case.run / "quarantine").glob("*/checkpoint/model.safetensors"))) == 2


# Files that other trainers unpickle when they find them beside the weights.
PICKLES = [
    "pytorch_model.bin", "optimizer.pt", "optimizer.bin", "scheduler.pt", "scheduler.bin", "scaler.pt",
    "training_args.bin", "rng_state.pth", "rng_state_0.pth", "random_states_0.pkl", "custom_checkpoint_0.pkl",
    ".metadata", "__0_0.distcp", "model.ckpt", "lit_model.pth", "mp_rank_00_model_states.pt",
]  # fmt: skip


@pytest.mark.reliability("R9")
@pytest.mark.parametrize("name", PICKLES)
def test_a_copied_pickle_is_neither_read_nor_tolerated(stopped_case: Case, scratch: Path, name: str) -> None:
    canary, newest = scratch / "canary", stopped_case.run / "checkpoints" / "step-00000009"
    (newest / name).write_bytes(b"cos\nsystem\n(S'touch " + str(canary).encode() + b"'\ntR.")
    assert stopped_case.forks.run("generate", newest, "--max-new-tokens", "1") == 3
    assert stopped_case.resume() == 0, stopped_case.forks.output
    stopped_case.require_equal_end()
    assert not canary.exists()
    assert name in (stopped_case.run / "quarantine" / "step-00000009" / "reason.txt").read_text()


def test_checkpoint_of_another_config_is_exit_3_with_nothing_changed(stopped_case: Case) -> None:
    config = stopped_case.run / "config.yaml"
    config.write_text(config.read_text().replace("lr: 0.01", "lr: 0.5"))
    (stopped_case.run / "lock").write_text("")  # where the dead process left its name
    before = fingerprint(stopped_case.run)
    assert stopped_case.resume() == 3
    assert "optim.lr was 0.01, is 0.5" in stopped_case.forks.output
    assert fingerprint(stopped_case.run) == before


@pytest.mark.reliability("R18")
def test_half_written_journal_line_is_repaired(stopped_case: Case) -> None:
    with (stopped_case.run / "journal.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 12, "lo')
    assert stopped_case.resume() == 0, stopped_case.forks.output
    stopped_case.require_equal_end()


@pytest.mark.reliability("R3")
def test_restored_from_a_backup_it_goes_on(stopped_case: Case, scratch: Path) -> None:
    backup = scratch / "backup"
    newest = stopped_case.run / "checkpoints" / "step-00000009"
    shutil.copytree(newest, backup)
    for folder in (stopped_case.run / "checkpoints").iterdir():
        (folder / "state.json").unlink()
    assert stopped_case.resume() == 3
    shutil.copytree(backup, newest)
    assert stopped_case.resume() == 0, stopped_case.forks.output
    stopped_case.require_equal_end()
