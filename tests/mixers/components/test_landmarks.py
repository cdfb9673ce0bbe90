"""Segments, their means and the pseudo-inverse that landmark methods are built from."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transnormer.mixers.components.landmarks import iterative_pseudo_inverse, segment_means, segments


@given(lengths=st.lists(st.integers(1, 300), min_size=1, max_size=4), count=st.integers(1, 150))
@settings(max_examples=100, deadline=None)
def test_segments_partition_the_real_tokens(lengths, count):
    starts, sizes = segments(torch.tensor(lengths), count)
    for row, length in enumerate(lengths):
        used = min(count, length)
        pieces = [list(range(a, a + n)) for a, n in zip(starts[row].tolist(), sizes[row].tolist(), strict=True)]
        assert list(itertools.chain(*pieces)) == list(range(length))
        assert all(token * used // length == index for index, piece in enumerate(pieces) for token in piece)
        assert all(pieces[:used])
        assert not any(pieces[used:])
        assert max(map(len, pieces[:used])) - min(map(len, pieces[:used])) <= 1


@given(length=st.integers(1, 60), padding=st.integers(0, 20), count=st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_means_are_those_of_the_segments(length, padding, count):
    total = length + padding
    count = min(count, total)
    x = torch.randn(1, total, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    starts, sizes = segments(torch.tensor([length]), count)
    means = segment_means(x, torch.tensor([length]), count)[0]
    for start, size, mean in zip(starts[0].tolist(), sizes[0].tolist(), means, strict=True):
        expected = x[0, start : start + size].mean(dim=0) if size else torch.zeros(2, dtype=torch.float64)
        torch.testing.assert_close(mean, expected, atol=1e-14, rtol=0)


def test_pseudo_inverse_converges_and_keeps_zero_rows():
    scores = torch.randn(3, 12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    matrix = (scores + 4 * torch.eye(12, dtype=torch.float64)).softmax(dim=-1)
    torch.testing.assert_close(iterative_pseudo_inverse(matrix, 12), torch.linalg.pinv(matrix), atol=1e-9, rtol=0)
    padded = torch.nn.functional.pad(matrix, (0, 3, 0, 3))
    inverse = iterative_pseudo_inverse(padded, 6)
    assert torch.count_nonzero(inverse[:, 12:]) == torch.count_nonzero(inverse[:, :, 12:]) == 0
    torch.testing.assert_close(inverse[:, :12, :12], iterative_pseudo_inverse(matrix, 6), atol=1e-12, rtol=0)
