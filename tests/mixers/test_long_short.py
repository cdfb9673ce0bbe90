"""Transformer-LS against a token-by-token restatement of its formulas, and `long_short_transformer` where they meet.

The restatement loops over queries and lists what each may see: it covers segments, the sliding window, chunks strictly
before the query's own, both LayerNorms, relative positions, the one softmax and padding, in float64. It takes the
sinusoidal codes from our own table, which is tested elsewhere.
The package (not ours) has another shape: K = V, norms per head, rotations, windows of whole blocks, and a chunk visible
to its own last token. With one head, rotations off, relative positions off and one window for all it is the same
attention, causal at every token that does not end a chunk, and bidirectional on keys that are already normalised (its
summary is of keys before the norm). That covers compression, norms and softmax, not the window's pattern, and causal
only one mean per chunk: with more the package fails.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transnormer.errors import ConfigError
from transnormer.mixers.components.positions import sinusoidal_embedding
from transnormer.mixers.registry import build_mixer

WIDTH, HEADS = 12, 2
HEAD = WIDTH // HEADS


def mixer_of(causal: bool, **options: object) -> nn.Module:
    """A mixer whose norms and biases are not at their plain start."""
    torch.manual_seed(0)
    mixer = build_mixer("long_short", hidden_size=WIDTH, num_heads=HEADS, causal=causal, max_length=256, **options)
    for parameter in mixer.parameters():
        nn.init.normal_(parameter, std=0.6)
    return mixer.double()


def normed(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    return F.layer_norm(x, (WIDTH,), norm.weight, norm.bias, norm.eps)


def head(x: Tensor, h: int) -> Tensor:
    return x[..., h * HEAD : (h + 1) * HEAD]


def summary(weights_of: Tensor, x: Tensor, rank: int, index: int) -> Tensor:
    """The index-th mean of x [n, WIDTH]: each head weighs the tokens by its own softmax over positions."""
    columns = [h * rank + index for h in range(HEADS)]
    means = [weights_of[:, c].softmax(0) @ head(x, h) for h, c in enumerate(columns)]
    return torch.cat(means)


def restated_bidirectional(mixer: nn.Module, x: Tensor, window: int, rank: int) -> Tensor:
    """One sequence x [n, WIDTH] without padding."""
    length = x.shape[0]
    q, k, v = mixer.q_proj(x), mixer.k_proj(x), mixer.v_proj(x)
    k, v = normed(mixer.window_norm, k), normed(mixer.window_norm, v)
    logits = mixer.summary_proj(x)
    far_k, far_v = (
        [normed(mixer.summary_norm, summary(logits, source, rank, r)) for r in range(rank)] for source in (k, v)
    )
    side = max(window // 2, 1)
    rows = []
    for i in range(length):
        start = i // window * window
        near = range(max(start - side, 0), min(start + window + side, length))
        keys, values = torch.stack([*far_k, *(k[j] for j in near)]), torch.stack([*far_v, *(v[j] for j in near)])
        heads = []
        for h in range(HEADS):
            weights = (head(keys, h) @ head(q[i], h) / HEAD**0.5).softmax(0)
            heads.append(weights @ head(values, h))
        rows.append(torch.cat(heads))
    return mixer.o_proj(torch.stack(rows))


def restated_causal(mixer: nn.Module, x: Tensor, window: int, chunk: int, rank: int) -> Tensor:
    length = x.shape[0]
    q, k, v = mixer.q_proj(x) / HEAD**0.5, mixer.k_proj(x), mixer.v_proj(x)
    near_k, near_v = normed(mixer.window_norm, k), normed(mixer.window_norm, v)
    logits = mixer.summary_proj(x)
    codes = sinusoidal_embedding(torch.arange(length), WIDTH, torch.float64)
    near_codes, far_codes = mixer.window_position(codes), mixer.chunk_position(codes)
    rows = []
    for i in range(length):
        heads = []
        for h in range(HEADS):
            content, position = head(q[i], h) + mixer.content_bias[h], head(q[i], h) + mixer.position_bias[h]
            scores, values = [], []
            for j in range(max(i - window + 1, 0), i + 1):
                scores.append(content @ head(near_k[j], h) + position @ head(near_codes[i - j], h))
                values.append(head(near_v[j], h))
            before = i // chunk  # complete chunks before the query's own
            for number in range(before):
                tokens = slice(number * chunk, (number + 1) * chunk)
                for r in range(rank):
                    far_k, far_v = (
                        normed(mixer.summary_norm, summary(logits[tokens], source[tokens], rank, r))
                        for source in (k, v)
                    )
                    distance = before * rank - 1 - (number * rank + r)
                    scores.append(head(q[i], h) @ head(far_k, h) + head(q[i], h) @ head(far_codes[distance], h))
                    values.append(head(far_v, h))
            heads.append(torch.stack(scores).softmax(0) @ torch.stack(values))
        rows.append(torch.cat(heads))
    return mixer.o_proj(torch.stack(rows))


@pytest.mark.parametrize(("window", "rank"), [(8, 5), (3, 2), (1, 1), (64, 3)])
def test_bidirectional_equals_the_restated_formula(window, rank):
    mixer = mixer_of(False, window_size=window, num_landmarks=rank)
    x, mask = torch.randn(2, 29, WIDTH, dtype=torch.float64), torch.ones(2, 29, dtype=torch.bool)
    mask[1, 11:] = False
    y = mixer(x, mask)
    for row, length in ((0, 29), (1, 11)):
        expected = restated_bidirectional(mixer, x[row, :length], window, rank)
        torch.testing.assert_close(y[row, :length], expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(("window", "chunk", "rank"), [(8, 6, 1), (5, 4, 3), (1, 2, 1), (64, 8, 2)])
def test_causal_equals_the_restated_formula(window, chunk, rank):
    mixer = mixer_of(True, window_size=window, chunk_size=chunk, chunk_rank=rank)
    x, mask = torch.randn(2, 29, WIDTH, dtype=torch.float64), torch.ones(2, 29, dtype=torch.bool)
    mask[1, 11:] = False
    y = mixer(x, mask)
    for row, length in ((0, 29), (1, 11)):
        expected = restated_causal(mixer, x[row, :length], window, chunk, rank)
        torch.testing.assert_close(y[row, :length], expected, atol=1e-12, rtol=1e-12)


class NoRotation(nn.Module):
    def forward(self, positions: Tensor, cache_key: object = None) -> Tensor:
        return torch.zeros(len(positions), WIDTH, dtype=torch.float64)


def matched(causal: bool, length: int, rank: int, segment: int) -> tuple[nn.Module, nn.Module]:
    package = pytest.importorskip(
        "long_short_transformer",
        reason="the oracle long-short-transformer (rotary-embedding-torch <= 0.3.6) is missing",
    )
    torch.manual_seed(0)
    oracle = package.LongShortAttention(
        dim=WIDTH,
        heads=1,
        dim_head=WIDTH,
        causal=causal,
        window_size=length,
        segment_size=segment,
        r=rank,
        pos_emb=NoRotation(),
    ).double()
    options = {"chunk_size": segment, "chunk_rank": rank} if causal else {"num_landmarks": rank}
    mixer = build_mixer(
        "long_short", hidden_size=WIDTH, num_heads=1, causal=causal, max_length=64, window_size=length, **options
    ).double()
    with torch.no_grad():
        for norm in (oracle.local_norm, oracle.global_norm):
            nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
        nn.init.normal_(oracle.to_dynamic_proj.weight)
        if not causal:
            oracle.to_kv.weight.copy_(torch.eye(WIDTH))
            for norm in (oracle.local_norm, mixer.window_norm):
                norm.eps = 1e-30
                nn.init.ones_(norm.weight), nn.init.zeros_(norm.bias)
        for projection in (mixer.q_proj, mixer.k_proj, mixer.v_proj, mixer.summary_proj):
            nn.init.zeros_(projection.bias)
        mixer.q_proj.weight.copy_(oracle.to_q.weight)
        mixer.k_proj.weight.copy_(oracle.to_kv.weight), mixer.v_proj.weight.copy_(oracle.to_kv.weight)
        mixer.summary_proj.weight.copy_(oracle.to_dynamic_proj.weight @ oracle.to_kv.weight)
        mixer.window_norm.load_state_dict(oracle.local_norm.state_dict())
        mixer.summary_norm.load_state_dict(oracle.global_norm.state_dict())
        mixer.o_proj.load_state_dict(oracle.to_out.state_dict())
        if causal:
            for projection in (mixer.window_position, mixer.chunk_position):
                nn.init.zeros_(projection.weight), nn.init.zeros_(projection.bias)
    return oracle, mixer


def test_causal_equals_the_package_where_both_see_the_same_chunks():
    length, segment = 32, 8
    oracle, mixer = matched(True, length, rank=1, segment=segment)
    x = torch.randn(2, length, WIDTH, dtype=torch.float64)
    same = (torch.arange(length) + 1) % segment != 0
    torch.testing.assert_close(mixer(x)[:, same], oracle(x)[:, same], atol=1e-12, rtol=1e-12)
    assert not torch.allclose(mixer(x)[:, ~same], oracle(x)[:, ~same])


def test_bidirectional_equals_the_package_on_normalised_keys():
    length = 20
    oracle, mixer = matched(False, length, rank=3, segment=4)
    x = F.layer_norm(torch.randn(2, length, WIDTH, dtype=torch.float64), (WIDTH,), eps=0.0)
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[1, 13:] = False
    torch.testing.assert_close(mixer(x, mask)[mask], oracle(x, mask=mask)[mask], atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(
    ("causal", "options", "message"),
    [
        (False, {"num_landmarks": 300}, "300 landmarks for sequences of at most 256"),
        (True, {"chunk_rank": 32}, "does not shorten"),
        (True, {"window_size": 0}, "window_size must be at least 1"),
        (True, {"chunk_size": 0}, "chunk_size must be at least 1"),
    ],
)
def test_bad_options_are_errors_when_built(causal, options, message):
    with pytest.raises(ConfigError, match=message):
        build_mixer("long_short", hidden_size=WIDTH, num_heads=HEADS, causal=causal, max_length=256, **options)
