"""Two CPU processes (gloo) learn what one learns, share one run folder, and hand it on to any other number."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from conftest import Case, Forks, wait_until
from tiny_run import journal_lines, losses, tiny_config, tiny_store

from transnormer.config.load import dump_config
from transnormer.train import checkpoint

_HERE = Path(__file__).parent


def launch(*arguments: str | Path, slow: float = 0.0) -> subprocess.Popen[bytes]:
    """The command in two processes, which need not be done with a step before `slow` seconds."""
    path = os.pathsep.join(str(folder) for folder in (_HERE, _HERE.parents[1]))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    script = [str(_HERE / "command_with_fault.py"), json.dumps(["slow", {"seconds": slow}])]
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*torchrun, *script, *map(str, arguments)], env=environment, stderr=subprocess.DEVNULL)


@pytest.fixture
def case(forks: Forks, scratch: Path) -> Case:
    """No dropout, whose masks depend on the rank; a batch that neither two ranks nor micro-batches divide evenly."""
    config = tiny_config(tiny_store(scratch), task="masked_lm", model__dropout=0.0, train__batch_size=5)
    recipe = scratch / "uneven.yaml"
    recipe.write_text(dump_config(config))
    case = Case(forks, recipe, scratch / "one", scratch / "two")
    assert forks.run("train", recipe, "--out", case.undisturbed) == 0, forks.output
    return case


def require_same_curve(case: Case) -> None:
    one, two = losses(case.undisturbed), losses(case.run)
    assert [step for step, _ in two] == [step for step, _ in one]
    assert [loss for _, loss in two] == pytest.approx([loss for _, loss in one], rel=1e-6)
    one_evals, two_evals = (journal_lines(run, "eval") for run in (case.undisturbed, case.run))
    assert len(one_evals) == len(two_evals) == 2
    for line, expected in zip(two_evals, one_evals, strict=True):
        assert line["metrics"] == pytest.approx(expected["metrics"], rel=1e-5)


def test_two_processes_give_the_loss_curve_of_one(case: Case) -> None:
    assert launch("train", case.recipe, "--out", case.run).wait(timeout=120) == 0
    result = json.loads((case.run / "result.json").read_text())
    assert result["processes"] == 2
    assert result["tokens"] == json.loads((case.undisturbed / "result.json").read_text())["tokens"]
    require_same_curve(case)


def test_stopped_on_two_then_killed_on_two_then_finished_on_one(case: Case) -> None:
    def journal_has(step: int) -> bool:
        return (case.run / "journal.jsonl").is_file() and losses(case.run)[-1:] >= [(step, 0.0)]

    two = launch("train", case.recipe, "--out", case.run, slow=0.2)
    wait_until(lambda: journal_has(2), seconds=120)
    two.send_signal(signal.SIGTERM)  # torchrun passes it on and waits for both
    assert two.wait(timeout=60) != 0
    newest = checkpoint.list_checkpoints(case.run / "checkpoints")[-1]
    stopped_after = checkpoint.verify(newest)["step"]
    assert stopped_after == losses(case.run)[-1][0]

    two = launch("resume", case.run, slow=0.2)
    wait_until(lambda: journal_has(stopped_after + 2), seconds=120)
    os.kill(psutil.Process(two.pid).children()[1].pid, signal.SIGKILL)
    assert two.wait(timeout=60) != 0

    assert case.resume() == 0, case.forks.output
    require_same_curve(case)
    assert [line["step"] for line in journal_lines(case.run, "resumed")][0] == stopped_after
