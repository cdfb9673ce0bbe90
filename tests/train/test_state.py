"""The state of a run and its randomness are functions of integers."""

from __future__ import annotations

from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st

from transnormer.step.training import seed_step, step_seed
from transnormer.train.state import Best, RunState


def test_state_survives_the_file(tmp_path: Path) -> None:
    metrics = {"loss": 0.1 + 0.2, "perplexity": float("inf")}
    state = RunState(step=5, tokens=2**40, seconds=0.1 + 0.2, metrics=metrics, best=Best(4, "loss", 0.25, metrics))
    state.excluded = [2, 7]
    state.write(tmp_path / "state.json", {"seed": 1})
    assert RunState.read(tmp_path / "state.json") == (state, {"seed": 1})


@given(st.sets(st.integers(0, 40)))
def test_batches_are_taken_in_order_without_the_excluded_ones(excluded: set[int]) -> None:
    taken = [RunState(step=step, excluded=list(excluded)).next_batches(1)[0] for step in range(30)]
    assert taken == [index for index in range(100) if index not in excluded][:30]


def test_rate_is_of_the_interval_since_the_last_line() -> None:
    state = RunState()
    state.advance(0, tokens=100, seconds=2.0)
    assert state.rate_since_last_line(start_anew=True) == 50.0
    state.advance(1, tokens=100, seconds=1.0)
    assert state.rate_since_last_line(start_anew=False) == 100.0
    state.advance(2, tokens=100, seconds=3.0)
    assert state.rate_since_last_line(start_anew=True) == 50.0


def test_randomness_of_a_step_depends_on_seed_step_and_rank_alone() -> None:
    def draw(seed: int, step: int, rank: int) -> float:
        seed_step(seed, step, rank, torch.device("cpu"))
        return torch.rand(()).item()

    assert draw(1, 2, 3) == draw(1, 2, 3)
    draws = [draw(seed, step, rank) for seed in range(3) for step in range(50) for rank in range(4)]
    assert len(set(draws)) == len(draws)
    assert step_seed(0, 1, 0) != step_seed(1, 0, 0)
