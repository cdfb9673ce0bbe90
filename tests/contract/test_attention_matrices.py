"""Every mixer that claims an attention matrix computes with it: its own norm and projection of matrix · V."""

from __future__ import annotations

import pytest
import torch
from test_mixers import HEADS, TOLERANCE, build, label, tokens, variants

from transnormer.errors import ConfigError
from transnormer.mixers.components.gated_unit import GatedUnit
from transnormer.mixers.registry import list_mixers, mixer_class, mixers_with_matrix

CASES = [case for case in variants() if not mixer_class(case[0]).traits.no_matrix]
WITH_MATRIX = pytest.mark.parametrize("case", CASES, ids=label)


def padding(*lengths: int, total: int) -> torch.Tensor:
    """Scattered padding: row i keeps lengths[i] tokens."""
    mask = torch.zeros(len(lengths), total, dtype=torch.bool)
    for row, length in enumerate(lengths):
        order = torch.randperm(total, generator=torch.Generator().manual_seed(row))
        mask[row, order[:length]] = True
    return mask


def output_from(mixer: torch.nn.Module, matrix: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """What a mixer makes of the weights and its values."""
    if isinstance(mixer, GatedUnit):
        return mixer.gated(x, matrix.squeeze(1) @ mixer.values(x, None))
    attended = torch.einsum("bhts,bshd->bthd", matrix, mixer.project(x)[2])
    return mixer.o_proj(mixer.xnorm(attended) if hasattr(mixer, "xnorm") else attended.flatten(-2))


@WITH_MATRIX
@pytest.mark.parametrize("length", [1, 65, 130])
def test_matrix_times_values_is_the_output(case, length):
    mixer, x = build(case), tokens(2, length)
    matrix = mixer.attention_matrix(x)
    assert matrix.shape == (2, 1 if isinstance(mixer, GatedUnit) else HEADS, length, length)
    torch.testing.assert_close(output_from(mixer, matrix, x), mixer(x), atol=TOLERANCE, rtol=0)


@WITH_MATRIX
def test_padding_neither_gives_nor_takes_and_changes_no_real_weight(case):
    mixer, x, mask = build(case), tokens(3, 100), padding(100, 71, 1, total=100)
    matrix = mixer.attention_matrix(x, mask)
    hidden = ~(mask[:, None, :, None] & mask[:, None, None, :]).expand_as(matrix)
    assert not matrix[hidden].any()
    torch.testing.assert_close(output_from(mixer, matrix, x)[mask], mixer(x, mask)[mask], atol=TOLERANCE, rtol=0)
    for row, real in enumerate(mask):
        alone = mixer.attention_matrix(x[row : row + 1, real])[0]
        torch.testing.assert_close(matrix[row][:, real][:, :, real], alone, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("case", [case for case in CASES if case[1]], ids=label)
def test_a_causal_matrix_is_lower_triangular(case):
    matrix = build(case).attention_matrix(tokens(1, 130))
    assert torch.equal(matrix, matrix.tril())


@pytest.mark.parametrize("name", [name for name in list_mixers() if mixer_class(name).traits.no_matrix])
def test_a_method_without_a_matrix_says_why(name):
    mixer = build((name, mixer_class(name).traits.causal, {}))
    with pytest.raises(ConfigError, match=f"{name} has no attention matrix: {mixer.traits.no_matrix}"):
        mixer.attention_matrix(tokens(1, 8))
    assert name not in mixers_with_matrix()


def test_a_wrong_input_is_named():
    mixer = build(("softmax", True, {}))
    with pytest.raises(ConfigError, match="softmax: x must be"):
        mixer.attention_matrix(tokens(2, 5)[0])
    with pytest.raises(ConfigError, match="softmax: mask must be"):
        mixer.attention_matrix(tokens(2, 5), torch.ones(2, 4, dtype=torch.bool))


def test_the_compatible_performer_keeps_padding_in_its_row_sums():
    mixer, x, mask = build(("performer", False, {"skyformer_compat": True})), tokens(2, 40), padding(40, 20, total=40)
    matrix = mixer.attention_matrix(x, mask)
    torch.testing.assert_close(output_from(mixer, matrix, x)[mask], mixer(x, mask)[mask], atol=TOLERANCE, rtol=0)
    assert matrix[1].sum(dim=-1)[:, mask[1]].max() < 0.999
