"""Sample order is a pure function of (seed, position)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transnormer.data.sampling import EVAL_MASKING, ORDER, TRAIN_MASKING, EpochSampler, generator
from transnormer.errors import ConfigError

SIZES = st.integers(1, 40)
SEEDS = st.integers(0, 2**64 - 1)


@given(n=SIZES, seed=SEEDS, epoch=st.integers(0, 5))
def test_each_epoch_visits_every_sample_once(n, seed, epoch):
    visited = [EpochSampler(n, seed).index(position) for position in range(epoch * n, (epoch + 1) * n)]
    assert {e for e, _ in visited} == {epoch}
    assert sorted(index for _, index in visited) == list(range(n))


@given(n=SIZES, seed=SEEDS, start=st.integers(0, 200), count=st.integers(0, 100))
def test_vectorised_indices_agree_with_single_ones(n, seed, start, count):
    sampler = EpochSampler(n, seed)
    assert sampler.indices(start, start + count).tolist() == [
        sampler.index(position)[1] for position in range(start, start + count)
    ]


def test_order_does_not_depend_on_what_was_asked_before():
    forwards, backwards = EpochSampler(50, 3), EpochSampler(50, 3)
    expected = [forwards.index(position) for position in range(200)]
    assert [backwards.index(position) for position in reversed(range(200))] == expected[::-1]


def test_seed_and_epoch_change_the_order():
    sampler = EpochSampler(1000, 0)
    first, second = sampler.indices(0, 1000), sampler.indices(1000, 2000)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, EpochSampler(1000, 1).indices(0, 1000))


def test_order_is_the_recorded_one():
    """A change here changes the sample order of every run: old checkpoints would resume into other data."""
    assert EpochSampler(10, 7).indices(0, 20).tolist() == [
        6, 3, 9, 1, 2, 0, 5, 7, 8, 4,
        1, 9, 2, 8, 5, 0, 4, 3, 7, 6,
    ]  # fmt: skip


def test_streams_share_no_random_bits():
    draws = {
        stream: generator(5, 9, stream).integers(2**63, size=8).tolist()
        for stream in (ORDER, TRAIN_MASKING, EVAL_MASKING)
    }
    assert len({number for drawn in draws.values() for number in drawn}) == 24


def test_order_is_philox_keyed_by_seed_and_epoch():
    expected = np.random.Generator(np.random.Philox(key=[11, 2])).permutation(30)
    assert np.array_equal(EpochSampler(30, 11).indices(60, 90), expected)


def test_large_seeds_keep_their_last_digits():
    large = 2**64 - 1
    assert EpochSampler(1000, large).indices(0, 9).tolist() != EpochSampler(1000, large - 1).indices(0, 9).tolist()


def test_bad_arguments():
    with pytest.raises(ValueError, match="at least one sample"):
        EpochSampler(0, 0)
    with pytest.raises(ConfigError, match="seed -1"):
        EpochSampler(3, -1).index(0)
