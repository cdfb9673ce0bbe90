"""NormAttention, DiagAttention and softmax attention against formulas written here from the papers.

The rotation is checked with complex numbers: a pair of features is one number, rotated by exp(i·θ·position).
"""

from __future__ import annotations

import pytest
import torch

from transnormer.mixers.registry import build_mixer

LENGTH, WIDTH, HEADS = 150, 32, 4


def heads(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(2, LENGTH, HEADS, WIDTH // HEADS)


def rotated(x: torch.Tensor, rotation: torch.nn.Module, positions: torch.Tensor) -> torch.Tensor:
    reflected = torch.eye(WIDTH // HEADS, dtype=x.dtype) - 2 * torch.outer(rotation.reflection, rotation.reflection)
    pairs = torch.view_as_complex((x @ reflected).unflatten(-1, (-1, 2)).contiguous())
    angles = positions[:, None].double() * rotation.theta
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)[:, None]).flatten(-2)


def build(name: str, causal: bool, **options: object) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    mixer = build_mixer(name, hidden_size=WIDTH, num_heads=HEADS, causal=causal, max_length=256, **options).double()
    return mixer, torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)


def rms(x: torch.Tensor) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("feature_map", ["1+elu", "elu"])
def test_norm_attention_with_lrpe(causal, feature_map):
    mixer, x = build("norm", causal, feature_map=feature_map, position="lrpe")
    shift = 1 if feature_map == "1+elu" else 0
    q, k = (heads(torch.where(p > 0, p, p.exp() - 1) + shift) for p in (mixer.q_proj(x), mixer.k_proj(x)))
    q, k = (rotated(f, mixer.rotation, torch.arange(LENGTH)) for f in (q, k))  # φ first, then the rotation
    scores = torch.einsum("bthd,bshd->bhts", q, k)
    scores = scores.tril() if causal else scores
    out = torch.einsum("bhts,bshd->bthd", scores, heads(mixer.v_proj(x))).flatten(-2)
    torch.testing.assert_close(mixer(x), mixer.o_proj(rms(out)), atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", ["softmax", "rela"])
def test_diag_attention_with_lrpe_inside_blocks(causal, kind):
    mixer, x = build("diag", causal, kind=kind, position="lrpe")
    position = torch.arange(LENGTH)
    q, k = (rotated(heads(p), mixer.rotation, position % 64) for p in (mixer.q_proj(x), mixer.k_proj(x)))
    scores = torch.einsum("bthd,bshd->bhts", q, k) * (WIDTH // HEADS) ** -0.5
    hidden = position[:, None] // 64 != position // 64
    if causal:
        hidden = hidden | (position[:, None] < position)
    if kind == "softmax":
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    else:
        weights = scores.masked_fill(hidden, 0).relu()
    out = torch.einsum("bhts,bshd->bthd", weights, heads(mixer.v_proj(x))).flatten(-2)
    expected = mixer.o_proj(out if kind == "softmax" else rms(out))
    torch.testing.assert_close(mixer(x), expected, atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("causal", [True, False])
def test_softmax_attention(causal):
    mixer, x = build("softmax", causal)
    scores = torch.einsum("bthd,bshd->bhts", heads(mixer.q_proj(x)), heads(mixer.k_proj(x)))
    scores = scores / (WIDTH // HEADS) ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), -torch.inf)
    out = torch.einsum("bhts,bshd->bthd", scores.softmax(-1), heads(mixer.v_proj(x))).flatten(-2)
    torch.testing.assert_close(mixer(x), mixer.o_proj(out), atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("xnorm", ["rms", "rms_gain", "layer", "head_rms"])
def test_every_xnorm_makes_the_output_independent_of_the_scale_of_the_values(xnorm):
    """What the norm is for: it bounds the output whatever the unnormalised sums grow to."""
    mixer, x = build("norm", True, xnorm=xnorm)
    with torch.no_grad():
        mixer.v_proj.weight *= 1e4  # far above epsilon, as the bias then is
        mixer.v_proj.bias *= 1e4
        small = mixer(x)
        mixer.v_proj.weight *= 1e4
        mixer.v_proj.bias *= 1e4
        torch.testing.assert_close(mixer(x), small, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", ["softmax", "rela"])
@torch.no_grad()
def test_diag_attention_reads_on_in_pieces_longer_than_a_block(kind):
    """Rows of different length, so that their blocks begin at different places of a piece; padding at each end."""
    mixer, x = build("diag", True, kind=kind, position="lrpe", block_size=16)
    counts = torch.tensor([[13, 50, 40], [32, 3, 60]])  # real tokens of two rows in three pieces
    outputs, state, read = [[], []], mixer.init_state(2), torch.zeros(2, dtype=torch.long)
    for real in counts.T:
        piece = torch.stack([torch.roll(x[row], -int(read[row]), dims=0)[: real.max()] for row in range(2)])
        y, state = mixer(piece, torch.arange(real.max()) < real[:, None], state)
        for row in range(2):
            outputs[row].append(y[row, : real[row]])
            assert not y[row, real[row] :].sub(mixer.o_proj.bias).any()  # a padded token attends to nothing
        read += real
    for row in range(2):
        whole = mixer(x[row : row + 1, : read[row]])[0]
        torch.testing.assert_close(torch.cat(outputs[row]), whole, atol=1e-12, rtol=1e-9)
