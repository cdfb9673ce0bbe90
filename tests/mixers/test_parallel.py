"""Two attentions side by side against T×T formulas written here: block softmax and unnormalised linear attention.

There is no outside implementation of this ablation; the formulas below share no code with the mixers. Decoding and
gradients are covered by tests/contract.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transnormer.errors import ConfigError
from transnormer.mixers.registry import build_mixer

WIDTH, HEADS, BLOCK, LENGTH = 24, 3, 5, 23


def pair_of(causal: bool, **options: object) -> nn.Module:
    torch.manual_seed(0)
    blocks = {"first_options": {"block_size": BLOCK}} if "first" not in options else {}
    common = {"hidden_size": WIDTH, "num_heads": HEADS, "causal": causal, "max_length": 64}
    return build_mixer("parallel", **common, **blocks, **options).double()


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)  # [B, H, T, D]


def merged_heads(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(-2)


def visible(causal: bool, blocks: bool) -> Tensor:
    steps = torch.arange(LENGTH)
    seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    if causal:
        seen = steps[:, None] >= steps
    return seen & (steps[:, None] // BLOCK == steps // BLOCK) if blocks else seen


def dense_diag(part: nn.Module, queries: Tensor, x: Tensor, causal: bool) -> Tensor:
    """Softmax inside blocks, before the output projection."""
    q, k, v = heads(part.q_proj(queries)), heads(part.k_proj(x)), heads(part.v_proj(x))
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~visible(causal, blocks=True), -torch.inf)
    return merged_heads(scores.softmax(-1) @ v)


def dense_norm(part: nn.Module, queries: Tensor, x: Tensor, causal: bool) -> Tensor:
    """φ(Q)φ(K)ᵀV and RMSNorm, before the output projection."""
    q, k, v = heads(1 + F.elu(part.q_proj(queries))), heads(1 + F.elu(part.k_proj(x))), heads(part.v_proj(x))
    out = merged_heads((q @ k.mT * visible(causal, blocks=False)) @ v)
    return out / (out.square().mean(-1, keepdim=True) + 1e-6).sqrt()


@pytest.mark.parametrize("causal", [True, False])
def test_the_mean_of_two_half_width_attentions(causal):
    mixer = pair_of(causal)
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    diag, norm = dense_diag(mixer.first, x, x, causal), dense_norm(mixer.second, x, x, causal)
    assert diag.shape[-1] == norm.shape[-1] == WIDTH // 2
    expected = (mixer.first.o_proj(diag) + mixer.second.o_proj(norm)) / 2
    torch.testing.assert_close(mixer(x), expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_concat_is_one_projection_of_the_concatenated_outputs(causal):
    mixer = pair_of(causal, combine="concat")
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    outputs = torch.cat([dense_diag(mixer.first, x, x, causal), dense_norm(mixer.second, x, x, causal)], dim=-1)
    parts = (mixer.first.o_proj, mixer.second.o_proj)
    weight, bias = torch.cat([part.weight for part in parts], dim=1), sum(part.bias for part in parts)
    torch.testing.assert_close(mixer(x), F.linear(outputs, weight, bias), atol=1e-12, rtol=1e-12)


def test_a_pair_has_the_parameters_of_one_attention():
    def count(mixer: nn.Module) -> int:
        return sum(parameter.numel() for parameter in mixer.parameters())

    one = build_mixer("norm", hidden_size=WIDTH, num_heads=HEADS, causal=True, max_length=64)
    assert count(pair_of(True)) == count(one) + WIDTH  # two output projections have two biases


def test_shared_options_reach_those_that_know_them_and_own_options_win():
    mixer = pair_of(True, position="rope", second_options={"position": "lrpe", "feature_map": "elu"}, dropout=0.1)
    assert (mixer.first.rotation.kind, mixer.second.rotation.kind) == ("rope", "lrpe")
    assert mixer.first.dropout == 0.1


def test_any_two_attentions_work_bidirectionally():
    mixer = pair_of(False, first="softmax", second="linear_elu")
    assert mixer(torch.randn(2, 9, WIDTH, dtype=torch.float64)).isfinite().all()


@pytest.mark.parametrize(
    ("causal", "options", "message"),
    [
        (True, {"first": "softmax", "second": "norm"}, "cannot decode together"),
        (True, {"first": "norm", "second": "norm"}, "cannot decode together"),
        (False, {"first": "flash", "second": "norm"}, "needs more of its input"),
        (False, {"first": "dig"}, "did you mean 'diag'"),
        (False, {"second_options": {"block_size": 3}}, "has no option 'block_size'"),
        (False, {"combine": "sum"}, "unknown combine 'sum'"),
        (False, {"num_heads": 8}, "half of hidden_size 24"),
    ],
)
def test_bad_pairs_are_errors_when_built(causal, options, message):
    arguments = {"hidden_size": WIDTH, "num_heads": HEADS, "causal": causal, "max_length": 64, **options}
    with pytest.raises(ConfigError, match=message):
        build_mixer("parallel", **arguments)
