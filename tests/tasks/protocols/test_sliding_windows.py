"""Windows with and without overlap: every token is scored once, with exactly the context that the protocol says."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transnormer.data.windows import Windows
from transnormer.errors import ConfigError
from transnormer.tasks.protocols.windows import SlidingWindows

CPU = torch.device("cpu")


@settings(max_examples=300, deadline=None)
@given(tokens=st.integers(2, 200), length=st.integers(1, 60), data=st.data())
def test_every_token_but_the_first_is_scored_once_with_the_promised_context(tokens, length, data):
    stride = data.draw(st.integers(1, length))
    spans = list(SlidingWindows(length, stride).spans(tokens))
    context = {}
    for index, span in enumerate(spans):
        assert 0 <= span.start < span.stop <= tokens - 1
        assert span.stop - span.start <= length
        assert span.start == index * stride
        for target in range(span.stop - span.scored + 1, span.stop + 1):
            assert target not in context
            context[target] = target - span.start
    assert sorted(context) == list(range(1, tokens))
    for target, read in context.items():
        assert read >= min(target, length - stride + 1)
    assert all(span.stop - span.start == length for span in spans[:-1])


@settings(max_examples=100, deadline=None)
@given(tokens=st.integers(2, 200), length=st.integers(1, 60))
def test_a_stride_of_the_length_is_what_training_evaluates(tokens, length):
    class Split:
        def __len__(self) -> int:
            return tokens

        def read(self, start: int, stop: int) -> np.ndarray:
            return np.arange(start, stop)

    trained = Windows(Split(), stride=length, lookahead=1)
    spans = list(SlidingWindows(length, length).spans(tokens))
    assert [(span.start, span.stop, span.scored) for span in spans] == [
        (int(window[0]), int(window[-1]), len(window) - 1) for window in (trained[i] for i in range(len(trained)))
    ]


@pytest.mark.parametrize("method", ["t2", "vanilla"])
@pytest.mark.parametrize(("length", "stride"), [(24, 24), (24, 7), (16, 1), (200, 50)])
def test_losses_equal_a_forward_for_each_target(method, length, stride, small_model, stream_of, brute_force):
    model, stream = small_model(method), stream_of(60)
    protocol = SlidingWindows(length, stride)
    with torch.no_grad():
        loss, targets, _ = protocol.sums(model, stream, CPU, tokens_at_once=100).tolist()
    expected, scored = 0.0, 0
    for start in range(0, 59, stride):  # written anew: window by window, what was not scored yet
        for target in range(scored + 1, min(start + length, 59) + 1):
            expected += brute_force(model, stream.ids, start, target)
            scored = target
    assert targets == scored == 59
    assert loss == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("stride", [10, 3, 1])
def test_more_overlap_changes_nothing_for_a_model_that_sees_one_token(stride, bigram_model, stream_of):
    (model, log_p), stream = bigram_model, stream_of(100)
    loss, targets, hits = SlidingWindows(10, stride).sums(model, stream, CPU, 64).tolist()
    pairs = list(pairwise(stream.ids.tolist()))
    assert targets == len(pairs)
    assert loss == pytest.approx(-sum(log_p[a, b].item() for a, b in pairs), rel=1e-4)  # the last norm has an epsilon
    assert hits == sum(int(log_p[a].argmax()) == b for a, b in pairs)


def test_a_uniform_model_has_the_perplexity_of_its_vocabulary(uniform_model, stream_of):
    loss, targets, _ = SlidingWindows(16, 5).sums(uniform_model, stream_of(70), CPU, 64).tolist()
    assert math.exp(loss / targets) == pytest.approx(11, rel=1e-12)


def test_batches_do_not_change_the_sums(small_model, stream_of):
    model, stream = small_model("t2"), stream_of(90)
    one, many = (SlidingWindows(12, 5).sums(model, stream, CPU, size) for size in (1, 10_000))
    torch.testing.assert_close(one, many, rtol=1e-10, atol=0)


@pytest.mark.parametrize(("length", "stride"), [(16, 17), (16, 0), (0, 0)])
def test_windows_that_make_no_sense(length, stride):
    with pytest.raises(ConfigError, match=r"--stride|window of 0"):
        SlidingWindows(length, stride)


def test_learned_positions_end_where_they_end(small_model, stream_of):
    model = small_model("vanilla", position_embedding="learned", max_position_embeddings=20)
    SlidingWindows(20, 10).sums(model, stream_of(50), CPU, 64)
    with pytest.raises(
        ConfigError, match=r"21 tokens in a row, .* this model ends at 20: its positions are learned"
    ) as refusal:
        SlidingWindows(21, 10).sums(model, stream_of(50), CPU, 64)
    assert "--context 20" in refusal.value.hint
