"""Multi-query associative recall (MQAR; Arora et al. 2023, "Zoology", section 3): sequences to be generated.

    k₁ v₁ k₂ v₂ ... k_n v_n   then each key once more, at a random place, among tokens that are no keys

A sequence begins with n pairs; behind them each key is asked for once, and the token to predict there is its value.
Tokens 0 .. V/2 - 1 are keys, the others values. As in Zoology, places early behind the pairs are likelier, by a power
law with exponent 0.01 - 1. Other than there, what stands between the queries is drawn from the values only, so that
every key behind the pairs is a query, and a sequence says by itself what is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from transnormer.config.recall import RecallSection
from transnormer.data.example_plan import Plan
from transnormer.data.example_source import Example, Part, Source, consecutive
from transnormer.data.example_writer import Form
from transnormer.data.sampling import generator
from transnormer.errors import ConfigError

TASK = "recall/mqar"
_STREAM = 24  # a Philox counter of its own, apart from those of `transnormer.data.sampling` and of the generators
_POWER = 0.01


def draw(index: int, keys: RecallSection, seed: int = 0) -> np.ndarray:
    """The ids of a sequence, a pure function of its number and the arguments."""
    rng = generator(seed, index, _STREAM)
    half, pairs, length = keys.vocab_size // 2, keys.pairs, keys.sequence_length
    ids = rng.integers(half, keys.vocab_size, size=length)
    asked = rng.permutation(half)[:pairs]
    ids[: 2 * pairs : 2] = asked
    # The values are all different, too: a model cannot do with the few that are frequent.
    ids[1 : 2 * pairs : 2] = half + rng.permutation(keys.vocab_size - half)[:pairs]
    places = rng.choice((length - 2 * pairs) // 2, size=pairs, replace=False, p=_law((length - 2 * pairs) // 2))
    ids[2 * pairs + 2 * places] = asked
    return ids


@lru_cache(maxsize=8)
def _law(places: int) -> np.ndarray:
    """How likely each place behind the pairs is."""
    weights = np.arange(1, places + 1, dtype=np.float64) ** (_POWER - 1)
    return weights / weights.sum()


def check(keys: RecallSection) -> None:
    """Refuse sequences that cannot be drawn."""
    if 4 * keys.pairs > keys.sequence_length:
        raise ConfigError(
            f"recall.pairs={keys.pairs}: {keys.pairs} pairs and as many queries, every other token, do not fit into "
            f"recall.sequence_length={keys.sequence_length}",
            f"set recall.sequence_length={4 * keys.pairs} or more",
        )
    if keys.pairs > keys.vocab_size // 2:
        raise ConfigError(
            f"recall.pairs={keys.pairs}: recall.vocab_size={keys.vocab_size} has {keys.vocab_size // 2} keys",
            f"set recall.vocab_size={2 * keys.pairs} or more",
        )


def plan(keys: RecallSection, seed: int = 0) -> Plan:
    """The store of these keys: three splits of one generated set."""
    check(keys)
    sizes = {"train": keys.train_examples, "valid": keys.valid_examples, "test": keys.valid_examples}
    count = sum(sizes.values())

    def read() -> Iterator[Example]:
        return (((draw(index, keys, seed),), 0) for index in range(count))

    arguments = {"seed": seed, **keys.model_dump()}
    source = Source(
        {"all": Part(count, read, consecutive(sizes))},
        "consecutive parts of one generated set",
        {"generated": arguments},
    )
    # There is no label: what is asked stands in the sequence.
    form = Form(TASK, keys.vocab_size, num_labels=1, max_length=keys.sequence_length)
    return Plan.of(form, source, limit=None, differences={})
