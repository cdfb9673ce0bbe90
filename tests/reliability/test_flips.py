"""Single bits flipped in files of a run, a model or a store: each command notices before it uses what they say."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from real_runs import Case, Forks, fingerprint
from tiny_run import journal_lines, tiny_store

Sized = Callable[[int, int], int]


def flip(path: Path, generator: random.Random) -> bytes:
    """Make one bit of a file another one, and return what the file was."""
    content = path.read_bytes()
    bit = generator.randrange(len(content) * 8)
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)
    return content


def in_turn(folder: Path, count: int) -> Iterator[Path]:
    """Each file of a folder as often as any other: most bits are those of tensors, and would hide the rest."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return (files[number % len(files)] for number in range(count))


@pytest.mark.reliability("R2")
def test_resume_falls_back_to_the_checkpoint_before(stopped_case: Case, scratch: Path, sized: Sized) -> None:
    newest, generator = Path("checkpoints") / "step-00000009", random.Random(2)
    for number, path in enumerate(in_turn(stopped_case.run / newest, sized(9, 200))):
        case = Case(stopped_case.forks, stopped_case.recipe, stopped_case.undisturbed, scratch / f"copy{number}")
        shutil.copytree(stopped_case.run, case.run)
        flip(case.run / newest / path.name, generator)
        before = fingerprint(case.run)
        if case.resume() == 3:  # the manifest's number of its format: one of another version stays where it is
            assert path.name == "manifest.json"
            assert "format" in case.forks.output
            assert fingerprint(case.run) | {"lock": ""} == before | {"lock": ""}
        else:
            case.require_equal_end()
            assert path.name in journal_lines(case.run, "quarantined")[0]["text"]
            assert [line["step"] for line in journal_lines(case.run, "resumed")] == [6]
        shutil.rmtree(case.run)


COMMANDS: dict[str, Callable[[Path, Path], list[str | Path]]] = {
    "eval": lambda run, _: ["eval", run],
    "generate": lambda run, _: ["generate", run, "--max-new-tokens", "1"],
    "export": lambda run, out: ["export", run, "--out", out],
}


@pytest.mark.reliability("R2")
@pytest.mark.parametrize("command", COMMANDS)
def test_weights_are_not_used(case: Case, scratch: Path, command: str, sized: Sized) -> None:
    shutil.copytree(case.undisturbed, case.run)
    arguments, out, generator = COMMANDS[command](case.run, scratch / "out"), scratch / "out", random.Random(3)
    for path in in_turn(case.run / "final", sized(9, 200)):
        content = flip(path, generator)
        assert case.forks.run(*arguments) == 3, (path, case.forks.output)
        assert "Traceback" not in case.forks.output
        assert not out.exists()
        path.write_bytes(content)
    assert case.forks.run(*arguments) == 0, case.forks.output


@pytest.mark.reliability("R10")
def test_data_verify_names_the_file(forks: Forks, scratch: Path, sized: Sized) -> None:
    store, generator = tiny_store(scratch), random.Random(4)
    for path in in_turn(store, sized(6, 200)):
        content = flip(path, generator)
        assert forks.run("data", "verify", store) == 5, (path, forks.output)
        assert path.name in forks.output
        assert "Traceback" not in forks.output
        path.write_bytes(content)
    assert forks.run("data", "verify", store) == 0, forks.output
