"""MQAR sequences: what they are made of, that a dictionary answers them all, and that they depend on nothing else."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transnormer.config.recall import RecallSection
from transnormer.data.example_plan import write_store
from transnormer.data.examples import ExampleStore
from transnormer.data.mqar import draw, plan
from transnormer.errors import ConfigError


def small(**changes: int) -> RecallSection:
    return RecallSection(**{"train_examples": 40, "valid_examples": 10, **changes})


@settings(max_examples=60, deadline=None)
@given(data=st.data(), pairs=st.integers(1, 12), index=st.integers(0, 2**31))
def test_pairs_then_each_key_once_among_values(data, pairs: int, index: int) -> None:
    length = data.draw(st.integers(4 * pairs, 6 * pairs + 9))
    vocab = data.draw(st.integers(max(4, 2 * pairs), 4 * pairs + 5))
    ids = draw(index, small(pairs=pairs, sequence_length=length, vocab_size=vocab)).tolist()
    assert len(ids) == length
    keys, values, rest = ids[: 2 * pairs : 2], ids[1 : 2 * pairs : 2], ids[2 * pairs :]
    assert len(set(keys)) == len(set(values)) == pairs
    assert max(keys) < vocab // 2 <= min(values)
    assert max(values) < vocab
    assert sorted(token for token in rest if token < vocab // 2) == sorted(keys)
    # No query stands right behind another: a model that reads its answers next would have to wait.
    assert all(second >= vocab // 2 for first, second in pairwise(rest) if first < vocab // 2)


def test_a_sequence_is_a_function_of_its_number() -> None:
    keys = small()
    np.testing.assert_array_equal(draw(7, keys), draw(7, keys))
    assert (draw(7, keys) != draw(8, keys)).any()
    assert (draw(7, keys) != draw(7, keys, seed=1)).any()


def test_places_early_behind_the_pairs_are_likelier_and_all_are_possible() -> None:
    keys = small(pairs=2, sequence_length=24, vocab_size=16)
    places = [place for index in range(2000) for place in np.flatnonzero(draw(index, keys)[4:] < 8) // 2]
    counts = np.bincount(places, minlength=10)
    assert (counts > 0).all()
    assert counts[0] > 1.3 * counts[1] > 1.3 * counts[-1]


def test_the_store_has_three_splits_without_a_common_sequence(tmp_path) -> None:
    write_store(plan(small()), tmp_path / "store")
    store = ExampleStore.open(tmp_path / "store")
    store.verify()
    splits = {name: store.split(name) for name in ("train", "valid", "test")}
    assert {name: len(split) for name, split in splits.items()} == {"train": 40, "valid": 10, "test": 10}
    rows = {split.sequence(i).tobytes() for split in splits.values() for i in range(len(split))}
    assert len(rows) == 60
    np.testing.assert_array_equal(splits["valid"].sequence(0), draw(40, small()))


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"pairs": 33, "sequence_length": 128}, "do not fit into recall.sequence_length=128", "=132 or more"),
        ({"pairs": 8, "vocab_size": 15}, "has 7 keys", "recall.vocab_size=16 or more"),
    ],
)
def test_what_cannot_be_drawn_is_refused(changes: dict[str, int], message: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        plan(small(**changes))
    assert hint in caught.value.hint
