"""Two CPU processes (gloo) learn what one learns, share one run folder, and hand it on to any other number."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from real_runs import Case, Forks
from tiny_run import journal_lines, losses, tiny_config, tiny_store

from transnormer.config.load import dump_config
from transnormer.train import checkpoint


@pytest.fixture
def case(forks: Forks, scratch: Path) -> Case:
    """No dropout, whose masks depend on the rank; a batch that neither two ranks nor micro-batches divide evenly."""
    changes = {"model__dropout": 0.0, "train__batch_size": 5, "train__log_layer_gradients": True}
    config = tiny_config(tiny_store(scratch), task="masked_lm", **changes)
    recipe = scratch / "uneven.yaml"
    recipe.write_text(dump_config(config))
    case = Case(forks, recipe, scratch / "one", scratch / "two")
    assert forks.run("train", recipe, "--out", case.undisturbed) == 0, forks.output
    return case


def start_and_stop(case: Case, *arguments: str | Path, step: int) -> list[int]:
    """Two ranks that have stopped themselves before a step."""
    ranks = case.forks.start_ranks(*arguments, fault=("stop_at_step", {"step": step}))
    for pid in ranks:
        case.forks.wait_for_stop(pid)
    return ranks


@pytest.mark.reliability("R11")
def test_two_processes_give_the_loss_curve_of_one(case: Case) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    arguments = ["-m", "transnormer", "train", str(case.recipe), "--out", str(case.run)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*torchrun, *arguments], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    result = json.loads((case.run / "result.json").read_text())
    assert result["processes"] == 2
    assert result["tokens"] == json.loads((case.undisturbed / "result.json").read_text())["tokens"]
    case.require_same_curve()


@pytest.mark.reliability("R11")
def test_stopped_on_two_then_killed_on_two_then_finished_on_one(case: Case) -> None:
    ranks = start_and_stop(case, "train", case.recipe, "--out", case.run, step=3)
    os.kill(ranks[1], signal.SIGTERM)  # a signal to any rank stops all of them after the same step
    for pid in ranks:
        os.kill(pid, signal.SIGCONT)
    assert [case.forks.wait(pid) for pid in ranks] == [75, 75]
    newest = checkpoint.list_checkpoints(case.run / "checkpoints")[-1]
    stopped_after = checkpoint.verify(newest)["step"]
    assert stopped_after == losses(case.run)[-1][0]

    ranks = start_and_stop(case, "resume", case.run, step=stopped_after + 3)
    os.kill(ranks[1], signal.SIGKILL)
    os.kill(ranks[0], signal.SIGCONT)
    assert case.forks.wait(ranks[1]) == -signal.SIGKILL
    assert case.forks.wait(ranks[0]) != 0

    assert case.resume() == 0, case.forks.output
    case.require_same_curve()
    assert journal_lines(case.run, "resumed")[0]["step"] == stopped_after


@pytest.mark.reliability("R11")
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_on_as_many_processes_it_ends_with_the_same_bits(case: Case, scratch: Path, kind: str, end: int) -> None:
    """Whether all were told to stop, or one was killed and the others ended for want of it."""
    undisturbed, settings = scratch / "undisturbed", f"train.parallel={kind}"
    ranks = case.forks.start_ranks("train", case.recipe, "--out", undisturbed, settings)
    assert [case.forks.wait(pid) for pid in ranks] == [0, 0], case.forks.output
    same = Case(case.forks, case.recipe, undisturbed, case.run)
    ranks = start_and_stop(same, "train", case.recipe, "--out", case.run, settings, step=5)
    os.kill(ranks[1], end)
    for pid in ranks:
        os.kill(pid, signal.SIGCONT)
    codes = [case.forks.wait(pid) for pid in ranks]
    assert codes == ([75, 75] if end == signal.SIGTERM else [7, -signal.SIGKILL]), case.forks.output
    ranks = case.forks.start_ranks("resume", case.run)
    assert [case.forks.wait(pid) for pid in ranks] == [0, 0], case.forks.output
    same.require_equal_end()


@pytest.mark.reliability("R11")
def test_an_error_on_the_main_process_ends_all(case: Case) -> None:
    assert case.train() == 0
    ranks = case.forks.start_ranks("train", case.recipe, "--out", case.run)
    assert [case.forks.wait(pid) for pid in ranks] == [2, 2]
    ranks = case.forks.start_ranks("train", case.recipe, "--out", case.run.parent / "new", "train.batch_size=1")
    assert [case.forks.wait(pid) for pid in ranks] == [2, 2]
    assert "train.batch_size" in case.forks.output
