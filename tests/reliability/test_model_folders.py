"""Model folders that are damaged, mislabelled or hostile: every command refuses them, and runs none of their code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from real_runs import Case
from safetensors.torch import load_file, save_file

COMMANDS: dict[str, Callable[[Path, Path], list[str | Path]]] = {
    "generate": lambda folder, _: ["generate", folder, "--max-new-tokens", "1"],
    "export": lambda folder, out: ["export", folder, "--out", out],
    "eval": lambda folder, _: ["eval", folder, "--text", __file__],
}


def run(case: Case, command: str, folder: Path) -> int:
    out = case.run.parent / "out"
    code = case.forks.run(*COMMANDS[command](folder, out))
    assert out.exists() == (code == 0 and command == "export")
    return code


@pytest.fixture
def model(case: Case) -> Path:
    """A copy of a run's final weights that has no manifest, as one that somebody else has saved."""
    folder = case.run.parent / "model"
    shutil.copytree(case.undisturbed / "final", folder)
    (folder / "manifest.json").unlink()
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_a_sound_folder_is_read(case: Case, model: Path, command: str) -> None:
    assert run(case, command, model) == 0, case.forks.output


@pytest.mark.reliability("R2")
@pytest.mark.parametrize("command", COMMANDS)
def test_the_manifest_beside_the_weights_counts_wherever_they_are_read_from(case: Case, command: str) -> None:
    final = case.run / "final"
    shutil.copytree(case.undisturbed / "final", final)
    weights = bytearray((final / "model.safetensors").read_bytes())
    weights[-100] ^= 0x10
    (final / "model.safetensors").write_bytes(weights)
    assert run(case, command, final) == 3
    assert "the content of model.safetensors differs" in case.forks.output
    assert "hint: restore it from a backup" in case.forks.output


@pytest.mark.reliability("R9")
@pytest.mark.parametrize("command", COMMANDS)
def test_tensors_under_other_names_are_not_replaced_by_random_ones(case: Case, model: Path, command: str) -> None:
    file = model / "model.safetensors"
    save_file({f"x.{name}": tensor for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})
    assert run(case, command, model) == 5
    assert case.forks.output.startswith("error: "), "no other line before it"
    assert "its weights have no" in case.forks.output
    assert "x.model.embed_tokens.weight" in case.forks.output


@pytest.mark.reliability("R9")
@pytest.mark.parametrize("command", COMMANDS)
def test_tensors_of_another_shape_are_refused(case: Case, model: Path, command: str) -> None:
    file = model / "model.safetensors"
    tensors = load_file(file)
    name = max(tensors, key=lambda each: tensors[each].numel())
    save_file({**tensors, name: tensors[name][1:].clone()}, file, metadata={"format": "pt"})
    rows, columns = tensors[name].shape
    assert run(case, command, model) == 5
    wanted = f"its {name} is [{rows - 1}, {columns}], and its config asks for [{rows}, {columns}]"
    assert wanted in case.forks.output
    assert "Traceback" not in case.forks.output


@pytest.mark.reliability("R9")
@pytest.mark.parametrize("command", COMMANDS)
def test_only_safetensors_are_read(case: Case, model: Path, command: str) -> None:
    torch.save(load_file(model / "model.safetensors"), model / "pytorch_model.bin")
    (model / "model.safetensors").unlink()
    assert run(case, command, model) == 5
    assert "no file named model.safetensors" in case.forks.output
    assert "hint: save or export the model again, as safetensors" in case.forks.output


@pytest.fixture
def trap(case: Case, model: Path) -> Path:
    """A file that appears once the tokenizer's own code has been run."""
    trap = case.run.parent / "trap"
    (model / "evil.py").write_text(f"open({str(trap)!r}, 'w')\n")
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    return trap


@pytest.mark.reliability("R9")
@pytest.mark.parametrize("command", COMMANDS)
def test_the_code_of_a_tokenizer_is_not_run(case: Case, model: Path, trap: Path, command: str) -> None:
    assert run(case, command, model) in (0, 5), case.forks.output
    assert not trap.exists()


@pytest.mark.reliability("R9")
def test_nor_is_it_by_whoever_prepares_data_with_it(case: Case, model: Path, trap: Path) -> None:
    text = case.run.parent / "text.txt"
    text.write_text("norm diag linear softmax\n" * 100)
    out = case.run.parent / "store"
    code = case.forks.run("data", "prepare", "text", "--text", text, "--tokenizer", model, "--out", out)
    assert code in (0, 5), case.forks.output
    assert not trap.exists()
