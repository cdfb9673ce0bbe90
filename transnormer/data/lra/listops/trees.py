"""Random ListOps expressions in bulk, with the distribution of the Long-Range Arena's generator.

That generator grows a tree depth first: a node is an operator with probability 1/4 unless it is at the deepest level,
otherwise a digit; an operator has 2 .. 10 arguments. Only expressions of 501 .. 1999 tokens are kept. All draws are
independent of each other, so growing many trees level by level and writing them depth first afterwards gives the same
distribution, and every step is one numpy call for thousands of trees.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from transnormer.data.lra.listops.language import CLOSE, MAX, MED, MIN, SM, ZERO

MAX_DEPTH = 10  # levels, the last of digits alone: at most nine nested operators
OPERATOR_PROBABILITY = 0.25
MIN_ARGUMENTS, MAX_ARGUMENTS = 2, 10
MIN_LENGTH, MAX_LENGTH = 501, 1999
COHORT = 2048  # trees grown at once; about one in twelve has a length that is kept


@dataclass
class Level:
    """The nodes of one depth, of all trees, siblings side by side in the order of their parents one level up."""

    tree: np.ndarray  # which tree a node belongs to
    arity: np.ndarray  # number of arguments; 0 for a digit
    token: np.ndarray  # operator or digit

    @property
    def is_operator(self) -> np.ndarray:
        return self.arity > 0

    def of_trees(self, kept: np.ndarray) -> Level:
        """The nodes of the kept trees, which are numbered anew."""
        here = kept[self.tree]
        return Level((np.cumsum(kept) - 1)[self.tree[here]], self.arity[here], self.token[here])


def grow(rng: np.random.Generator, trees: int) -> list[Level]:
    """Random trees of any length, one level after the other."""
    levels, tree = [], np.arange(trees)
    for depth in range(1, MAX_DEPTH + 1):
        arity = rng.integers(MIN_ARGUMENTS, MAX_ARGUMENTS, size=len(tree), endpoint=True)
        arity[rng.random(len(tree)) >= (OPERATOR_PROBABILITY if depth < MAX_DEPTH else 0.0)] = 0
        operator = rng.integers(MIN, SM, size=len(tree), endpoint=True, dtype=np.uint8)
        digit = rng.integers(ZERO, ZERO + 10, size=len(tree), dtype=np.uint8)
        levels.append(Level(tree, arity, np.where(arity > 0, operator, digit)))
        tree = np.repeat(tree, arity)
    return levels


def lengths(levels: list[Level], trees: int) -> np.ndarray:
    """Tokens of each tree: one for a digit, two for an operator and its bracket."""
    total = np.zeros(trees, dtype=np.int64)
    for level in levels:
        total += np.bincount(level.tree, weights=1 + level.is_operator, minlength=trees).astype(np.int64)
    return total


def sample(rng: np.random.Generator, count: int) -> list[tuple[np.ndarray, int]]:
    """The first `count` expressions of kept length, with their values."""
    examples: list[tuple[np.ndarray, int]] = []
    while len(examples) < count:
        levels = grow(rng, COHORT)
        length = lengths(levels, COHORT)
        kept = (length >= MIN_LENGTH) & (length <= MAX_LENGTH)
        examples += _written([level.of_trees(kept) for level in levels], length[kept])
    return examples[:count]


def _written(levels: list[Level], length: np.ndarray) -> list[tuple[np.ndarray, int]]:
    """Each tree as its tokens, depth first, and its value."""
    sizes, values = _sizes_and_values(levels)
    ends = np.cumsum(length)
    tokens = np.full(int(length.sum()), CLOSE, dtype=np.uint8)
    start = ends - length  # where the nodes of a level begin
    for level, below in zip(levels, [*sizes[1:], None], strict=True):
        tokens[start] = level.token
        if below is not None:
            start = np.repeat(start[level.is_operator] + 1, level.arity[level.is_operator]) + _before(level, below)
    return [(tokens[end - size : end], int(value)) for end, size, value in zip(ends, length, values, strict=True)]


def _before(level: Level, below: np.ndarray) -> np.ndarray:
    """Tokens of the elder siblings of each node one level below."""
    through = np.cumsum(below) - below
    first = np.cumsum(level.arity) - level.arity
    here = level.is_operator
    return through - np.repeat(through[first[here]], level.arity[here])


def _sizes_and_values(levels: list[Level]) -> tuple[list[np.ndarray], np.ndarray]:
    """Tokens below and including each node, by level, and the values of the roots."""
    sizes: list[np.ndarray] = []
    values = below = np.empty(0, dtype=np.int64)
    for level in reversed(levels):
        here, size, value = level.is_operator, np.ones(len(level.arity), dtype=np.int64), level.token.astype(np.int64)
        value -= ZERO
        if here.any():
            arity = level.arity[here]
            first = np.cumsum(arity) - arity
            size[here] = 2 + np.add.reduceat(below, first)
            value[here] = _results(level.token[here], arity, first, values)
        sizes.append(size)
        below, values = size, value
    return sizes[::-1], values


def _results(operator: np.ndarray, arity: np.ndarray, first: np.ndarray, values: np.ndarray) -> np.ndarray:
    """What operators make of their arguments, which are values[first : first + arity]."""
    # Sorted within each operator's arguments, which stay side by side: minimum, median and maximum are then places.
    ordered = np.sort(np.repeat(np.arange(len(arity)), arity) * 10 + values) % 10
    middle = (ordered[first + (arity - 1) // 2] + ordered[first + arity // 2]) // 2
    total = np.add.reduceat(values, first) % 10
    return np.select(
        [operator == MIN, operator == MAX, operator == MED], [ordered[first], ordered[first + arity - 1], middle], total
    )
