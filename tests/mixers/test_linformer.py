"""Linformer against linformer 0.2.3 (`LinformerSelfAttention`), in float64.

The package shares one projection among the heads and has two, for keys and for values; ours has one per head for both.
Covered: equal projections, full and short sequences, padding (as shorter sequences). What differs between heads is
compared with the formula written out per head.
"""

from __future__ import annotations

import pytest
import torch

from transnormer.errors import ConfigError
from transnormer.mixers.registry import build_mixer

HIDDEN, HEADS = 32, 4


def linformer(max_length: int = 64, num_features: int = 16, **options):
    torch.manual_seed(0)
    mixer = build_mixer(
        "linformer",
        hidden_size=HIDDEN,
        num_heads=HEADS,
        causal=False,
        max_length=max_length,
        num_features=num_features,
        **options,
    ).double()
    with torch.no_grad():
        mixer.projection *= 20  # far from the nearly uniform attention of the start
    return mixer


def tokens(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_it_is_the_package_when_heads_share_a_projection():
    package = pytest.importorskip("linformer", reason="linformer is not installed")
    mixer = linformer()
    oracle = package.LinformerSelfAttention(HIDDEN, seq_len=64, k=16, heads=HEADS).double()
    with torch.no_grad():
        mixer.projection.copy_(mixer.projection[:1].clone().expand_as(mixer.projection))
        for ours, theirs in ((mixer.q_proj, oracle.to_q), (mixer.k_proj, oracle.to_k), (mixer.v_proj, oracle.to_v)):
            ours.bias.zero_()
            theirs.weight.copy_(ours.weight)
        oracle.to_out.load_state_dict(mixer.o_proj.state_dict())
        for projection in (oracle.proj_k, oracle.proj_v):
            projection.copy_(mixer.projection[0].T)
    x, lengths = tokens(3, 64, HIDDEN), (64, 37, 1)
    y = mixer(x, torch.arange(64) < torch.tensor(lengths)[:, None])
    for row, length in enumerate(lengths):
        expected = oracle(x[row : row + 1, :length])
        torch.testing.assert_close(y[row, :length], expected[0], atol=1e-13, rtol=0)


def test_each_head_has_its_own_projection():
    mixer, x = linformer(), tokens(2, 40, HIDDEN)
    q, k, v = (t.transpose(1, 2) for t in mixer.project(x))
    outs = []
    for head in range(HEADS):
        e = mixer.projection[head, :, :40]
        scores = q[:, head] @ (e @ k[:, head]).mT / 8**0.5
        outs.append(scores.softmax(-1) @ (e @ v[:, head]))
    torch.testing.assert_close(mixer(x), mixer.o_proj(torch.cat(outs, dim=-1)), atol=1e-13, rtol=0)


def test_projection_is_learned_unless_skyformer_compat():
    assert "projection" in dict(linformer().named_parameters())
    frozen = linformer(skyformer_compat=True)
    assert "projection" not in dict(frozen.named_parameters())
    assert "projection" in frozen.state_dict()
    assert torch.equal(frozen(tokens(1, 30, HIDDEN)), linformer()(tokens(1, 30, HIDDEN)))


def test_lengths_and_options_are_checked():
    with pytest.raises(ConfigError, match="num_features must lie between 1 and max_length 64"):
        linformer(num_features=65)
    with pytest.raises(ConfigError, match="no causal form"):
        build_mixer("linformer", hidden_size=HIDDEN, num_heads=HEADS, causal=True, max_length=256)
    with pytest.raises(ConfigError, match="input of 65 tokens"):
        linformer()(tokens(1, 65, HIDDEN))
