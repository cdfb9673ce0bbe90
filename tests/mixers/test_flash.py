"""FLASH against `flash_pytorch.FLASH`, an implementation we did not write.

Covered: both terms of mixed chunk attention, causal and bidirectional, rotations over the whole sequence, key padding,
lengths that are no multiple of the chunk, in float64, with the gradient to the input. Bridged: the T5 bias as in
test_flash_quad.py; FLASH divides the bidirectional linear part by the length, we (as the runs in the paper) by the
chunk, so its queries are scaled. Rotations agree to float32, in which both keep their angles. Decoding is not in the
package: it is compared with the parallel form by tests/contract and below across many chunk boundaries.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from transnormer.errors import ConfigError
from transnormer.mixers.components.gated_unit import DistanceBias
from transnormer.mixers.registry import build_mixer

flash_pytorch = pytest.importorskip("flash_pytorch", reason="the oracle FLASH-pytorch is not installed")
rotary = pytest.importorskip("rotary_embedding_torch", reason="the oracle FLASH-pytorch needs it for rotations")

WIDTH, SIZE, CHUNK = 24, 10, 8


def matched(causal: bool, length: int, position: str) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    oracle = flash_pytorch.FLASH(
        dim=WIDTH,
        group_size=CHUNK,
        query_key_dim=SIZE,
        causal=causal,
        norm_klass=lambda _: nn.Identity(),
        rotary_pos_emb=rotary.RotaryEmbedding(dim=SIZE) if position == "rope" else None,
    ).double()
    mixer = build_mixer(
        "flash",
        hidden_size=WIDTH,
        num_heads=1,
        causal=causal,
        max_length=64,
        chunk_size=CHUNK,
        query_key_size=SIZE,
        position=position,
    ).double()
    with torch.no_grad():
        nn.init.normal_(oracle.qk_offset_scale.gamma, std=1.5)
        nn.init.normal_(oracle.qk_offset_scale.beta, std=1.5)
        weights, biases = (part.chunk(2) for part in (oracle.to_hidden[0].weight, oracle.to_hidden[0].bias))
        mixer.value_proj.weight.copy_(weights[0]), mixer.value_proj.bias.copy_(biases[0])
        mixer.gate_proj.weight.copy_(weights[1]), mixer.gate_proj.bias.copy_(biases[1])
        mixer.base_proj.load_state_dict(oracle.to_qk[0].state_dict())
        mixer.o_proj.load_state_dict(oracle.to_out.state_dict())
        # Both order their affine images as chunk query, linear query, chunk key, linear key.
        mixer.gamma.copy_(oracle.qk_offset_scale.gamma), mixer.beta.copy_(oracle.qk_offset_scale.beta)
        if not causal:
            mixer.gamma[1] *= CHUNK / length
            mixer.beta[1] *= CHUNK / length
        fill_table(mixer.bias, oracle.rel_pos_bias(torch.zeros(CHUNK, CHUNK)))
    return oracle, mixer


def fill_table(bias: DistanceBias, square: torch.Tensor) -> None:
    length = square.shape[0]
    for distance in range(1 - length, length):
        i, j = (distance, 0) if distance >= 0 else (0, -distance)
        bias.table[distance + bias.max_length - 1] = square[i, j]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("length", "padded"), [(40, False), (40, True), (37, False), (37, True), (5, False)])
@pytest.mark.parametrize(("position", "tolerance"), [("none", 1e-12), ("rope", 1e-5)])
def test_equals_flash_pytorchs_flash(causal, length, padded, position, tolerance):
    oracle, mixer = matched(causal, length, position)
    x = torch.randn(3, length, WIDTH, dtype=torch.float64)
    mask = torch.ones(3, length, dtype=torch.bool)
    if padded:
        mask[1, 25:], mask[2, 3:] = False, False
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, expected = mixer(ours, mask), oracle(theirs, mask=mask) - theirs  # the package adds the residual
    assert expected[mask].abs().mean() > 1e-2
    torch.testing.assert_close(y[mask], expected[mask], atol=tolerance, rtol=tolerance)
    y[mask].square().sum().backward()
    expected[mask].square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, atol=tolerance, rtol=100 * tolerance)


def test_steps_and_ragged_pieces_equal_the_parallel_form_over_many_chunks():
    torch.manual_seed(0)
    mixer = build_mixer("flash", hidden_size=WIDTH, num_heads=1, causal=True, max_length=64, chunk_size=CHUNK).double()
    nn.init.normal_(mixer.gamma)
    x, mask = torch.randn(2, 90, WIDTH, dtype=torch.float64), torch.ones(2, 90, dtype=torch.bool)
    mask[1, :13] = False
    whole = mixer(x, mask)
    for cuts in ((0, 1, 2, 9, 33, 34, 90), (0, 8, 16, 17, 89, 90), (0, 70, 90)):
        state, pieces = mixer.init_state(2), []
        for start, stop in itertools.pairwise(cuts):
            y, state = mixer(x[:, start:stop], mask[:, start:stop], state)
            pieces.append(y)
        torch.testing.assert_close(torch.cat(pieces, dim=1)[mask], whole[mask], atol=1e-12, rtol=0)
        assert state["keys"].shape[1] == CHUNK - 1


def test_a_chunk_of_one_token_is_an_error():
    with pytest.raises(ConfigError, match="chunk_size"):
        build_mixer("flash", hidden_size=WIDTH, num_heads=1, causal=True, max_length=8, chunk_size=1)
