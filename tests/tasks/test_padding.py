"""Padded batches."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from transnormer.tasks.padding import padded


@given(st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=9), min_size=1, max_size=6), st.integers(0, 4))
def test_what_is_real_comes_first_and_nothing_else_is(sequences: list[list[int]], extra: int):
    longest = max(map(len, sequences))
    ids, mask = padded([np.array(each, dtype=np.uint16) for each in sequences], longest + extra if extra else None)
    assert ids.dtype == torch.int64
    assert ids.shape == mask.shape == (len(sequences), longest + extra)
    for row, real, sequence in zip(ids.tolist(), mask.tolist(), sequences, strict=True):
        assert real == [True] * len(sequence) + [False] * (len(real) - len(sequence))
        assert row == sequence + [0] * (len(row) - len(sequence))
