"""FLASH-quad against `flash_pytorch.GAU`, an implementation we did not write.

Covered: projections, squared-ReLU attention, causal mask, key padding, gate, output projection, in float64, with the
gradient to the input. Bridged: GAU adds a bucketed T5 bias before dividing by the length, we add a table entry per
distance after it, so the table is filled from its buckets. Not covered by GAU, which has neither: rotations, and the
bias beyond the table; the bias is compared with explicit rotations by complex numbers, rotations in test_flash.py.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from transnormer.errors import ConfigError
from transnormer.mixers.components.gated_unit import DistanceBias
from transnormer.mixers.registry import build_mixer

flash_pytorch = pytest.importorskip("flash_pytorch", reason="the oracle FLASH-pytorch is not installed")

LENGTH, WIDTH, SIZE = 53, 24, 10


def matched(causal: bool) -> tuple[nn.Module, nn.Module]:
    """GAU and our mixer with the same weights; queries and keys large enough for the ReLU to matter."""
    torch.manual_seed(0)
    oracle = flash_pytorch.GAU(
        dim=WIDTH, query_key_dim=SIZE, causal=causal, add_residual=False, norm_klass=lambda _: nn.Identity()
    ).double()
    mixer = build_mixer(
        "flash_quad",
        hidden_size=WIDTH,
        num_heads=1,
        causal=causal,
        max_length=LENGTH,
        query_key_size=SIZE,
        position="none",
    ).double()
    with torch.no_grad():
        nn.init.normal_(oracle.offsetscale.gamma, std=3.0)
        nn.init.normal_(oracle.offsetscale.beta, std=3.0)
        weights, biases = (part.chunk(2) for part in (oracle.to_hidden[0].weight, oracle.to_hidden[0].bias))
        mixer.value_proj.weight.copy_(weights[0]), mixer.value_proj.bias.copy_(biases[0])
        mixer.gate_proj.weight.copy_(weights[1]), mixer.gate_proj.bias.copy_(biases[1])
        mixer.base_proj.load_state_dict(oracle.to_qk[0].state_dict())
        mixer.o_proj.load_state_dict(oracle.to_out[0].state_dict())
        mixer.gamma.copy_(oracle.offsetscale.gamma), mixer.beta.copy_(oracle.offsetscale.beta)
        fill_table(mixer.bias, oracle.rel_pos_bias(torch.zeros(LENGTH, LENGTH)) / LENGTH)
    return oracle, mixer


def fill_table(bias: DistanceBias, square: torch.Tensor) -> None:
    """Enter a bias [n, n] that depends on the distance i - j alone."""
    length = square.shape[0]
    for distance in range(1 - length, length):
        i, j = (distance, 0) if distance >= 0 else (0, -distance)
        bias.table[distance + bias.max_length - 1] = square[i, j]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_equals_flash_pytorchs_gau(causal, padded):
    oracle, mixer = matched(causal)
    x = torch.randn(3, LENGTH, WIDTH, dtype=torch.float64)
    mask = torch.ones(3, LENGTH, dtype=torch.bool)
    if padded:
        mask[1, 40:], mask[2, 7:] = False, False
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, expected = mixer(ours, mask), oracle(theirs, mask=mask)
    assert expected[mask].abs().mean() > 1e-3
    torch.testing.assert_close(y[mask], expected[mask], atol=1e-12, rtol=1e-12)
    y[mask].square().sum().backward()
    expected[mask].square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-12, rtol=1e-12)


def test_beyond_the_table_the_bias_is_a_product_of_rotated_vectors():
    torch.manual_seed(0)
    bias = DistanceBias(max_length=6, size=SIZE).double()
    pairwise = bias.pairwise(20, torch.device("cpu"))
    # A pair of features is a complex number, RoPE a multiplication by exp(iθ·position).
    a, b = (torch.view_as_complex(p.detach().view(-1, 2)) for p in (bias.far_query, bias.far_key))
    inverse_frequencies = 10_000.0 ** (-torch.arange(0, SIZE, 2, dtype=torch.float64) / SIZE)
    for i, j in ((0, 0), (5, 0), (0, 5), (6, 0), (19, 2), (0, 6), (3, 18)):
        if abs(i - j) < 6:
            expected = bias.table[i - j + 5]
        else:
            expected = (
                a * torch.exp(1j * inverse_frequencies * i) * (b * torch.exp(1j * inverse_frequencies * j)).conj()
            ).real.sum()
        torch.testing.assert_close(pairwise[i, j], expected, atol=1e-7, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_far_beyond_the_table_half_precision_rounds_the_bias_alone(dtype):
    torch.manual_seed(0)
    bias = DistanceBias(max_length=6, size=SIZE).to(dtype)
    distances = torch.arange(4000)
    rounded, exact = bias(distances), bias.float()(distances)
    assert rounded.dtype == dtype
    torch.testing.assert_close(rounded, exact.to(dtype), atol=0, rtol=0)


def test_the_scale_is_the_maximal_length_not_that_of_the_sequence():
    """Else a longer sequence would change what was said before."""
    torch.manual_seed(0)
    mixer = build_mixer("flash_quad", hidden_size=WIDTH, num_heads=1, causal=True, max_length=16).double()
    x = torch.randn(1, 40, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(mixer(x)[:, :9], mixer(x[:, :9]), atol=1e-13, rtol=0)


@pytest.mark.parametrize(("options", "message"), [({"expansion": 0}, "expansion"), ({"query_key_size": 7}, "even")])
def test_bad_options_are_errors_when_built(options, message):
    with pytest.raises(ConfigError, match=message):
        build_mixer("flash_quad", hidden_size=WIDTH, num_heads=1, causal=True, max_length=8, **options)
