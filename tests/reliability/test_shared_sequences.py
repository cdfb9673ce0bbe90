"""CPU processes (gloo) that share sequences learn what one learns, and hand the run on to any other number."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from real_runs import Case, Forks
from tiny_run import losses, tiny_config, tiny_store

from transnormer.config.load import dump_config

SHARED = "train.context_parallel=2"


@pytest.fixture(params=["causal_lm", "masked_lm"])
def case(forks: Forks, scratch: Path, request: pytest.FixtureRequest) -> Case:
    """No dropout, whose masks depend on the rank; a batch that neither two groups nor micro-batches divide evenly."""
    store = tiny_store(scratch)
    config = tiny_config(store, task=request.param, train__batch_size=3, train__log_layer_gradients=True)
    model = config.model.model_copy(update={"dropout": 0.0, "mixer_options": {"diag": {"block_size": 8}}})
    recipe = scratch / "recipe.yaml"
    recipe.write_text(dump_config(config.model_copy(update={"model": model})))
    case = Case(forks, recipe, scratch / "one", scratch / "shared")
    assert forks.run("train", recipe, "--out", case.undisturbed) == 0, forks.output
    return case


only_causal = pytest.mark.parametrize("case", ["causal_lm"], indirect=True)


@pytest.mark.parametrize("count", [2, 4])
def test_processes_that_share_sequences_give_the_loss_curve_of_one(case: Case, count: int) -> None:
    """Four processes are two groups, which have shares of a batch."""
    ranks = case.forks.start_ranks("train", case.recipe, "--out", case.run, SHARED, count=count)
    assert [case.forks.wait(pid) for pid in ranks] == [0] * count, case.forks.output
    case.require_same_curve()
    one, shared = (json.loads((run / "result.json").read_text()) for run in (case.undisturbed, case.run))
    assert (shared["processes"], shared["tokens"]) == (count, one["tokens"])
    for how in ([], ["--carry"]) if "causal_lm" in case.recipe.read_text() else ([],):
        assert case.forks.run("eval", case.run, *how) == 0, case.forks.output  # in one process, which shares with none


@pytest.mark.reliability("R11")
@only_causal
def test_a_run_is_handed_from_two_to_one_and_from_one_to_two(case: Case) -> None:
    ranks = case.forks.start_ranks("train", case.recipe, "--out", case.run, SHARED, fault=("stop_at_step", {"step": 3}))
    for pid in ranks:
        case.forks.wait_for_stop(pid)
    os.kill(ranks[1], signal.SIGTERM)
    for pid in ranks:
        os.kill(pid, signal.SIGCONT)
    assert [case.forks.wait(pid) for pid in ranks] == [75, 75]

    assert case.resume() == 2  # its config still asks for two
    assert "does not divide the number of processes (1)" in case.forks.output
    alone = case.forks.start("resume", case.run, "train.context_parallel=1", fault=("stop_at_step", {"step": 7}))
    case.forks.wait_for_stop(alone)
    os.kill(alone, signal.SIGTERM)
    os.kill(alone, signal.SIGCONT)
    assert case.forks.wait(alone) == 75
    assert 3 <= losses(case.run)[-1][0] < 12

    ranks = case.forks.start_ranks("resume", case.run, SHARED)
    assert [case.forks.wait(pid) for pid in ranks] == [0, 0], case.forks.output
    case.require_same_curve()


@pytest.mark.reliability("R11")
@only_causal
def test_a_killed_process_ends_those_that_wait_for_it(case: Case) -> None:
    ranks = case.forks.start_ranks("train", case.recipe, "--out", case.run, SHARED, fault=("stop_at_step", {"step": 5}))
    for pid in ranks:
        case.forks.wait_for_stop(pid)
    os.kill(ranks[1], signal.SIGKILL)
    os.kill(ranks[0], signal.SIGCONT)
    assert case.forks.wait(ranks[1]) == -signal.SIGKILL
    assert case.forks.wait(ranks[0]) not in (0, -signal.SIGKILL)
    ranks = case.forks.start_ranks("resume", case.run)
    assert [case.forks.wait(pid) for pid in ranks] == [0, 0], case.forks.output
    case.require_same_curve()


@only_causal
@pytest.mark.parametrize("late", [0, 1])
def test_processes_that_make_no_whole_groups_end_before_there_is_a_run(case: Case, late: int) -> None:
    """Whichever comes last: the first one holds what the others connect to, and does not leave before they have."""
    wrong = ("train", case.recipe, "--out", case.run, "train.context_parallel=4")
    ranks = case.forks.start_ranks(*wrong, fault=("come_late", {"rank": late, "seconds": 3.0}))
    assert [case.forks.wait(pid) for pid in ranks] == [2, 2]
    assert "train.context_parallel=4 does not divide the number of processes (2)" in case.forks.output
    assert not case.run.exists()


@pytest.mark.slow
@pytest.mark.reliability("R17")
@only_causal
def test_who_comes_late_to_a_group_whose_first_is_dead_ends_soon(case: Case) -> None:
    late = ("come_late", {"rank": 1, "seconds": 6.0})
    ranks = case.forks.start_ranks("train", case.recipe, "--out", case.run, SHARED, fault=late)
    time.sleep(4)
    os.kill(ranks[0], signal.SIGKILL)
    began = time.monotonic()
    assert [case.forks.wait(pid) for pid in ranks] == [-signal.SIGKILL, 7]
    assert time.monotonic() - began < 60
    assert "rank 0, which holds the store of the group, has ended" in case.forks.output
