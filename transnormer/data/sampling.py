"""Sample order and randomness as pure functions of (seed, position): there is no state to save or restore."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from transnormer.errors import ConfigError

# Philox counters start here, so that order, masking, ... never share random bits, whatever the seed and position.
ORDER, TRAIN_MASKING, EVAL_MASKING = 0, 1, 2


def generator(seed: int, position: int, stream: int) -> np.random.Generator:
    """A generator that depends on nothing but (seed, position, stream)."""
    if not 0 <= seed < 2**64:
        raise ConfigError(f"seed {seed} is outside 0 .. 2^64 - 1", "set a seed such as 0")
    # As an array: numpy turns a list that holds a number above 2^63 into floats, and loses its last digits.
    key = np.array([seed, position], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, stream]))


class EpochSampler:
    """Endless shuffled passes over n samples; position p is sample p mod n of the permutation of epoch p // n."""

    def __init__(self, n: int, seed: int) -> None:
        if n < 1:
            raise ValueError(f"an EpochSampler needs at least one sample, got {n}")
        self.n = n
        self.seed = seed

    def index(self, position: int) -> tuple[int, int]:
        """(epoch, sample index) at a position."""
        epoch, index = divmod(position, self.n)
        return epoch, int(_permutation(self.n, self.seed, epoch)[index])

    def indices(self, start: int, stop: int) -> np.ndarray:
        """Sample indices at positions start .. stop - 1, across epochs."""
        positions = np.arange(start, stop, dtype=np.int64)
        chosen = np.empty_like(positions)
        for epoch in range(start // self.n, (stop - 1) // self.n + 1 if stop > start else 0):
            here = positions // self.n == epoch
            chosen[here] = _permutation(self.n, self.seed, epoch)[positions[here] - epoch * self.n]
        return chosen


@lru_cache(maxsize=4)
def _permutation(n: int, seed: int, epoch: int) -> np.ndarray:
    return generator(seed, epoch, ORDER).permutation(n)
