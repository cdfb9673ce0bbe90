"""ListOps: nested lists of digits and operators (Nangia and Bowman 2018), 501 .. 1999 tokens as in Long-Range Arena."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import count as count_from
from itertools import islice

import numpy as np

from transnormer.data.lra.listops.language import NUM_CLASSES, PAD, TOKENS, evaluate, to_tree_text
from transnormer.data.lra.listops.official import read_official_tsv
from transnormer.data.lra.listops.trees import MAX_LENGTH, sample
from transnormer.data.lra.streams import LISTOPS
from transnormer.data.sampling import generator
from transnormer.data.workers import in_order
from transnormer.errors import ConfigError

__all__ = [
    "MAX_LENGTH",
    "NUM_CLASSES",
    "PAD",
    "SPLITS",
    "TOKENS",
    "evaluate",
    "generate",
    "read_official_tsv",
    "shard",
    "to_tree_text",
]

SPLITS = {"train": 96_000, "valid": 2_000, "test": 2_000}  # consecutive parts of one deduplicated set
SHARD_EXAMPLES = 1_000

Example = tuple[np.ndarray, int]


def generate(count: int, seed: int, processes: int = 2) -> Iterator[Example]:
    """`count` different (uint8 tokens, label) pairs; a smaller count gives the beginning of a larger one.

    The set depends on the seed alone, not on the number of processes.
    """
    if count < 0:
        raise ConfigError(f"count is {count}", "ask for 0 examples or more")
    generator(seed, 0, LISTOPS)  # complains about a bad seed here, not in another process
    shards = in_order(partial(shard, seed), count_from(), processes)
    try:
        yield from islice(distinct(example for examples in shards for example in examples), count)
    finally:
        shards.close()


def shard(seed: int, index: int) -> list[Example]:
    """Examples of one shard, a pure function of (seed, index); two shards may share an example."""
    return sample(generator(seed, index, LISTOPS), SHARD_EXAMPLES)


def distinct(examples: Iterable[Example]) -> Iterator[Example]:
    """Drops every expression that came before."""
    seen: set[bytes] = set()
    for tokens, label in examples:
        digest = hashlib.blake2b(tokens.tobytes(), digest_size=16).digest()
        if digest not in seen:
            seen.add(digest)
            yield tokens, label
