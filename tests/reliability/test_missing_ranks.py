"""A process that freezes, dies or never comes ends those that wait for it, in time, by its name; the run goes on."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from real_runs import Case, Fault, Forks
from tiny_run import tiny_config, tiny_store

from transnormer.config.load import dump_config
from transnormer.train import checkpoint

pytestmark = pytest.mark.reliability("R17")
TIMEOUT = 3
STOP_AT_STEP: Fault = ("stop_at_step", {"step": 5})


@pytest.fixture
def case(forks: Forks, scratch: Path) -> Case:
    config = tiny_config(
        tiny_store(scratch), model__dropout=0.0, train__rank_timeout=TIMEOUT, train__log_layer_gradients=True
    )
    model = config.model.model_copy(update={"mixer_options": {"diag": {"block_size": 8}}})
    recipe = scratch / "recipe.yaml"
    recipe.write_text(dump_config(config.model_copy(update={"model": model})))
    case = Case(forks, recipe, scratch / "one", scratch / "several")
    assert forks.run("train", recipe, "--out", case.undisturbed) == 0, forks.output
    return case


def finish_on_one(case: Case, *settings: str) -> None:
    """The checkpoint of step 3 is whole, and a single process goes on from it to the end of an undisturbed run."""
    newest = checkpoint.list_checkpoints(case.run / "checkpoints")[-1]
    assert checkpoint.verify(newest)["step"] == 3
    assert case.forks.run("resume", case.run, *settings) == 0, case.forks.output
    case.require_same_curve()


@pytest.mark.parametrize(("count", "frozen"), [(2, 1), (2, 0), (3, 1)])
def test_a_frozen_rank_ends_the_others_and_is_named(case: Case, count: int, frozen: int) -> None:
    """Rank 0 holds the store in which signs of life are written: frozen, it is named all the same."""
    ranks = case.forks.start_ranks("train", case.recipe, "--out", case.run, fault=STOP_AT_STEP, count=count)
    for pid in ranks:
        case.forks.wait_for_stop(pid)
    survivors = [pid for rank, pid in enumerate(ranks) if rank != frozen]
    began = time.monotonic()
    for pid in survivors:
        os.kill(pid, signal.SIGCONT)
    try:
        assert [case.forks.wait(pid) for pid in survivors] == [7] * len(survivors), case.forks.output
        assert time.monotonic() - began < TIMEOUT + 5
    finally:
        os.kill(ranks[frozen], signal.SIGKILL)
        case.forks.wait(ranks[frozen])
    said = " ".join(case.forks.output.split())
    for rank in range(count):
        if rank == frozen:
            assert f"error: rank {rank}" in said
        else:
            assert f"error: rank {rank}" not in said
            assert f"and rank {rank} (" not in said
    finish_on_one(case)


def test_a_rank_that_is_alive_but_never_comes_is_named(case: Case) -> None:
    fault: Fault = ("late_rank", {"rank": 1, "step": 5, "seconds": 60.0})
    ranks = case.forks.start_ranks("train", case.recipe, "--out", case.run, fault=fault)
    try:
        assert case.forks.wait(ranks[0]) == 7, case.forks.output
        assert f"error: rank 1 (pid {ranks[1]} on " in " ".join(case.forks.output.split())
    finally:
        os.kill(ranks[1], signal.SIGKILL)
        case.forks.wait(ranks[1])
    finish_on_one(case)


KINDS = {
    "ddp": (),
    "fsdp": ("train.parallel=fsdp",),
    "context": ("train.context_parallel=3", "data.sequence_length=24"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_rank_ends_the_others_at_once(forks: Forks, case: Case, scratch: Path, kind: str) -> None:
    settings = KINDS[kind]
    if kind == "context":  # other sequences, so another run to compare with
        case = Case(forks, case.recipe, scratch / "one-shorter", case.run)
        assert forks.run("train", case.recipe, "--out", case.undisturbed, settings[-1]) == 0, forks.output
    arguments = ("train", case.recipe, "--out", case.run, "train.rank_timeout=600", *settings)
    ranks = case.forks.start_ranks(*arguments, fault=STOP_AT_STEP, count=3)
    for pid in ranks:
        case.forks.wait_for_stop(pid)
    began = time.monotonic()
    os.kill(ranks[1], signal.SIGKILL)
    for pid in (ranks[0], ranks[2]):
        os.kill(pid, signal.SIGCONT)
    assert [case.forks.wait(pid) for pid in ranks] == [7, -signal.SIGKILL, 7], case.forks.output
    assert time.monotonic() - began < 60
    assert f"error: rank 1 (pid {ranks[1]} on " in " ".join(case.forks.output.split())
    finish_on_one(case, "train.parallel=ddp", "train.context_parallel=1")


def test_a_rank_that_never_starts_ends_the_first(case: Case) -> None:
    alone = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    pid = case.forks.start("train", case.recipe, "--out", case.run, environment={**alone, "MASTER_PORT": "0"})
    assert case.forks.wait(pid) == 7, case.forks.output
    assert "not all processes of the run came together" in case.forks.output
    assert not case.run.exists()
