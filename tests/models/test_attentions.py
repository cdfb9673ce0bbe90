"""`output_attentions=True`: the weights of every layer from every head, or an error where a method has none."""

from __future__ import annotations

import pytest
import torch

import transnormer as tn
from transnormer.errors import ConfigError

IDS = torch.randint(3, 60, (2, 70), generator=torch.Generator().manual_seed(0))
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}


def model_of(head: type, preset: str = "t2-tiny", **fields: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return head(tn.preset(preset, **{**SMALL, **fields})).double().eval()


def test_the_last_layer_of_the_backbone_is_made_of_its_matrix():
    model = model_of(tn.TransNormerModel, final_norm="none")
    out = model(IDS, output_attentions=True, output_hidden_states=True)
    assert [weights.shape for weights in out.attentions] == [(2, 2, 70, 70)] * 2
    layer, x = model.layers[-1], out.hidden_states[-2]
    values = layer.mixer.project(layer.mixer_norm(x))[2]
    attended = torch.einsum("bhts,bshd->bthd", out.attentions[-1], values)
    mixed = x + layer.mixer.o_proj(layer.mixer.xnorm(attended))
    y = mixed + layer.feed_forward(layer.feed_forward_norm(mixed))
    torch.testing.assert_close(y, out.last_hidden_state)


def test_early_layers_of_t2_are_block_diagonal_and_all_are_causal():
    diag, norm = model_of(tn.TransNormerForCausalLM)(IDS, output_attentions=True).attentions
    assert not diag[..., 64:, :64].any()
    assert norm[..., 64:, :64].any()
    assert torch.equal(norm, norm.tril())


def test_padding_anywhere_has_no_weights_and_changes_none():
    model = model_of(tn.TransNormerForMaskedLM, causal=False)
    mask = torch.ones_like(IDS)
    mask[1, :20], mask[1, 40:45] = 0, 0
    padded = model(IDS, attention_mask=mask, output_attentions=True).attentions
    alone = model(IDS[1:, mask[1].bool()], output_attentions=True).attentions
    real = mask[1].bool()
    for together, single in zip(padded, alone, strict=True):
        torch.testing.assert_close(together[1][:, real][:, :, real], single[0])
        assert not together[1][:, ~real].any()
        assert not together[1][:, :, ~real].any()


def test_classifiers_return_them_and_a_pair_has_both_sequences():
    single = model_of(tn.TransNormerForSequenceClassification, causal=False)
    pair = model_of(tn.TransNormerForPairClassification, causal=False)
    assert single(IDS, output_attentions=True).attentions[0].shape == (2, 2, 70, 70)
    assert pair(IDS, IDS[:, :50], output_attentions=True).attentions[1].shape == (4, 2, 70, 70)
    assert single(IDS).attentions is None


def test_a_method_without_a_matrix_is_refused_with_those_that_have_one():
    model = model_of(tn.TransNormerForMaskedLM, "linformer-tiny", causal=False)
    with pytest.raises(ConfigError, match=r"layer 1 is linformer, which has no attention matrix.*these.*softmax"):
        model(IDS, output_attentions=True)


def test_a_decode_state_is_refused():
    model = model_of(tn.TransNormerForCausalLM)
    with pytest.raises(ConfigError, match="output_attentions needs all tokens at once"):
        model(IDS, use_cache=True, output_attentions=True)
