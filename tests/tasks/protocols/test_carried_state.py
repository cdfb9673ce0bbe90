"""The carried state: documents read in segments give what one forward over all that came before gives."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from transnormer.data.documents import Documents
from transnormer.data.streams import TextStream
from transnormer.errors import ConfigError
from transnormer.tasks.protocols.carried import CarriedState

CPU = torch.device("cpu")
END = 10  # the last token of the vocabulary


def ended_by(token: int | None, stream: TextStream) -> Documents:
    return Documents([] if token is None else np.flatnonzero(stream.ids == token).tolist())


@pytest.fixture(scope="module")
def documents(stream_of):
    """Five documents, of one token and of many, the last without an end."""
    parts = [stream_of(size, seed=size).ids % END for size in (40, 1, 17, 32, 13)]
    ids = np.concatenate([np.append(part, END) for part in parts])[:-1]
    return stream_of(ids=ids)


@pytest.fixture(scope="module")
def expected(small_model, brute_force, documents):
    """The summed loss, each target predicted by one forward over all of its document before it; made once a model."""
    known: dict[tuple[str, int | None], float] = {}

    def sum_of(method: str, separator: int | None) -> float:
        if (method, separator) not in known:
            model, ids, start, total = small_model(method), documents.ids, 0, 0.0
            for target in range(1, len(ids)):
                total += brute_force(model, ids, start, target)
                if ids[target] == separator:
                    start = target
            known[method, separator] = total
        return known[method, separator]

    return sum_of


@pytest.mark.parametrize("separator", [END, None], ids=["documents", "stream"])
@pytest.mark.parametrize("method", ["t2", "t1", "linear_elu", "flash"])
@torch.no_grad()
def test_segments_with_a_carried_state_equal_a_forward_for_each_target(
    method, separator, small_model, documents, expected
):
    model = small_model(method)
    # Segments inside a block of 8, at its end, across it, and all at once; documents alone, some, and all together.
    for segment, tokens_at_once in ((5, 10_000), (16, 1), (16, 40), (27, 10_000), (1000, 64)):
        protocol = CarriedState(ended_by(separator, documents), segment)
        loss, targets, _ = protocol.sums(model, documents, CPU, tokens_at_once).tolist()
        assert targets == len(documents) - 1
        assert loss == pytest.approx(expected(method, separator), rel=1e-9)


@torch.no_grad()
def test_what_was_read_in_the_segments_before_matters(small_model, documents, expected):
    """The brute force would not notice a state that is thrown away if the model did not use it."""
    assert expected("t2", END) != pytest.approx(expected("t2", None), rel=1e-3)


@torch.no_grad()
def test_a_model_that_sees_one_token_and_one_that_sees_none(bigram_model, uniform_model, documents):
    model, log_p = bigram_model
    loss, targets, hits = CarriedState(ended_by(END, documents), 16).sums(model, documents, CPU, 64).tolist()
    pairs = list(pairwise(documents.ids.tolist()))
    assert loss == pytest.approx(-sum(log_p[a, b].item() for a, b in pairs), rel=1e-4)
    assert hits == sum(int(log_p[a].argmax()) == b for a, b in pairs)
    loss, targets, _ = CarriedState(ended_by(END, documents), 16).sums(uniform_model, documents, CPU, 64).tolist()
    assert math.exp(loss / targets) == pytest.approx(11, rel=1e-12)


@pytest.mark.parametrize("method", ["vanilla", "llama", "flash_quad", "long_short"])
def test_a_state_that_grows_is_refused_with_the_alternative(method, small_model, documents):
    with pytest.raises(ConfigError, match=r"--carry needs a state of fixed size, that of \w+ grows") as refusal:
        CarriedState(ended_by(END, documents)).sums(small_model(method), documents, CPU, 64)
    assert "--stride" in refusal.value.hint


def test_learned_positions_cannot_be_carried_beyond_their_end(small_model, documents):
    model = small_model("t2", position_embedding="learned", max_position_embeddings=41)
    CarriedState(ended_by(END, documents)).sums(model, documents, CPU, 64)  # the longest document has 41 tokens
    with pytest.raises(ConfigError, match=r"this model ends at 41: its positions are learned") as refusal:
        CarriedState(Documents()).sums(model, documents, CPU, 64)
    assert "--stride" in refusal.value.hint


def test_cosformer_ends_at_its_horizon(small_model, documents):
    model = small_model("cosformer", max_position_embeddings=41)
    CarriedState(ended_by(END, documents)).sums(model, documents, CPU, 64)
    with pytest.raises(ConfigError, match=r"106 tokens in a row, but this model ends at 41: .* cosformer is zero"):
        CarriedState(Documents()).sums(model, documents, CPU, 64)


def test_sinusoidal_positions_go_on(small_model, documents, brute_force):
    model = small_model("t2", position_embedding="sinusoidal", max_position_embeddings=8)
    loss, *_ = CarriedState(Documents(), 32).sums(model, documents, CPU, 64).tolist()
    losses = [brute_force(model, documents.ids, 0, target) for target in range(1, len(documents))]
    assert loss == pytest.approx(sum(losses), rel=1e-6)  # the sinusoids are float32
