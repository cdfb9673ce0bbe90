"""Loss by position: each one is that of a model that sees so many tokens and no more; bins lose none of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_run import tiny_config, tiny_store

from transnormer.analysis.recall import doubling_bins, draw, facts, losses_by_position, points
from transnormer.errors import DataError
from transnormer.tasks.causal_lm import CausalLM


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    store = tiny_store(tmp_path_factory.mktemp("store"))
    return CausalLM(tiny_config(store, data__sequence_length=12, data__eval_windows=None, model__dropout=0.0))


def test_each_loss_is_that_of_its_context_alone(task: CausalLM) -> None:
    torch.manual_seed(0)
    model = task.build_model().eval().double()
    found = losses_by_position(model, task, "valid", windows=3)
    windows = task.windows("valid")
    assert found.shape == (3, 12)
    for index in range(3):
        ids = torch.from_numpy(windows[index].astype(np.int64))
        for context in range(1, 13):
            with torch.no_grad():
                scores = model(input_ids=ids[None, :context]).logits[0, -1].log_softmax(-1)
            assert float(found[index, context - 1]) == pytest.approx(-float(scores[ids[context]]), rel=1e-5)


def test_all_windows_together_are_the_evaluation(task: CausalLM) -> None:
    torch.manual_seed(0)
    model = task.build_model().eval()
    found = losses_by_position(model, task, "valid")
    batches = [batch for batch in task.eval_batches("valid", 4) if batch["targets"].shape[1] == 12]
    with torch.no_grad():
        sums = sum(task.score(model, batch) for batch in batches)
    assert found.numel() == sums[1]
    assert float(found.sum()) == pytest.approx(float(sums[0]), rel=1e-5)


def test_eval_windows_bounds_the_windows_and_one_is_too_few(task: CausalLM) -> None:
    torch.manual_seed(0)
    model = task.build_model().eval()
    few = CausalLM(tiny_config(task.store.path, data__sequence_length=12, data__eval_windows=2))
    assert losses_by_position(model, few, "valid", windows=5).shape[0] == 2
    with pytest.raises(DataError, match="1 window of the valid split"):
        losses_by_position(model, task, "valid", windows=1)


@given(length=st.integers(1, 70), windows=st.integers(2, 5), seed=st.integers(0, 2**16))
def test_bins_double_and_together_are_all_positions(length: int, windows: int, seed: int) -> None:
    losses = torch.rand(windows, length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    bins = doubling_bins(losses)
    covered = [position for each in bins for position in range(each.first, each.last + 1)]
    assert covered == list(range(1, length + 1))
    assert all(each.last == 2**number for number, each in enumerate(bins[:-1]))
    total = sum(each.loss * (each.last - each.first + 1) for each in bins) / length
    assert total == pytest.approx(float(losses.mean()), rel=1e-9)
    first = losses[:, 0].numpy()
    assert bins[0].standard_error == pytest.approx(first.std(ddof=1) / np.sqrt(windows), rel=1e-9, abs=1e-12)


def test_what_is_recorded_and_drawn() -> None:
    losses = torch.arange(8, 0, -1, dtype=torch.float64).expand(3, 8)
    found = facts(losses)
    assert found["loss_by_position"] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert [each["loss"] for each in found["bins"]] == [8, 7, 5.5, 2.5]
    assert found["gain_of_last_doubling"] == 3
    bins = doubling_bins(losses)
    row = {"run": "a", "first": 5, "last": 8, "loss": 2.5, "standard_error": 0.0}
    assert points({"a": bins})[-1] == row
    axes = draw({"a": bins, "b": bins[:-1]}).axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "2", "4", "8"]
