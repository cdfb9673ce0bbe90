"""Perplexity against context length: the same targets at every context, with exactly that context."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transnormer.errors import ConfigError, DataError
from transnormer.tasks.protocols.contexts import ContextCurve

CPU = torch.device("cpu")


@pytest.mark.parametrize("method", ["t2", "vanilla"])
@torch.no_grad()
def test_each_context_equals_a_forward_for_each_target(method, small_model, stream_of, brute_force):
    model, stream = small_model(method), stream_of(50)
    curve = ContextCurve((2, 4, 16))
    targets = curve.targets(50)
    assert targets == range(9, 9 + 32)
    found = curve.losses(model, stream, CPU, tokens_at_once=70)
    assert list(found) == [2, 4, 16]
    for context, ways in found.items():
        windows = positions = 0.0
        for number, target in enumerate(targets):
            windows += brute_force(model, stream.ids, target - number % context - 1, target)
            half = context // 2
            positions += brute_force(model, stream.ids, target - number % half - 1 - half, target)
        assert ways["windows"]["targets"] == ways["positions"]["targets"] == 32
        assert ways["windows"]["loss"] == pytest.approx(windows, rel=1e-9)
        assert ways["positions"]["loss"] == pytest.approx(positions, rel=1e-9)


@settings(max_examples=200, deadline=None)
@given(tokens=st.integers(1, 1000), doublings=st.integers(0, 5), smallest=st.sampled_from([2, 6, 16]))
def test_the_targets_leave_room_for_the_largest_context(tokens, doublings, smallest):
    curve = ContextCurve(tuple(smallest * 2**n for n in range(doublings + 1)))
    largest = max(curve.contexts)
    if tokens < largest + largest // 2 + 1:
        with pytest.raises(DataError, match="too few for a context"):
            curve.targets(tokens)
        return
    targets = curve.targets(tokens)
    assert targets.stop <= tokens
    assert targets.start == largest // 2 + 1
    assert len(targets) % largest == 0
    assert tokens - targets.stop < largest


@pytest.mark.parametrize("contexts", [(3, 6), (0,), (4, 6), (1, 2)])
def test_contexts_that_cannot_share_their_targets(contexts):
    with pytest.raises(ConfigError, match="--contexts"):
        ContextCurve(contexts)


def test_learned_positions_are_said_before_anything_is_computed(small_model, stream_of):
    model = small_model("vanilla", position_embedding="learned", max_position_embeddings=16)
    with pytest.raises(ConfigError, match="this model ends at 16: its positions are learned"):
        ContextCurve((8, 16, 32)).losses(model, stream_of(100), CPU, 64)
