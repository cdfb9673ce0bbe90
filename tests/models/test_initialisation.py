"""Initial weights are those of the authors' code: fairseq's for the language model, BERT's for the masked one."""

from __future__ import annotations

import pytest
import torch

import transnormer as tn


def xavier_std(rows: int, columns: int, gain: float) -> float:
    return gain * (2 / (rows + columns)) ** 0.5


def test_language_model_uses_xavier_and_unit_variance_embeddings():
    torch.manual_seed(0)
    model = tn.TransNormerModel(tn.preset("t2-lm", vocab_size=2000))
    diag, norm = model.layers[0].mixer, model.layers[-1].mixer
    assert diag.q_proj.weight.std().item() == pytest.approx(xavier_std(512, 512, 1.0), rel=0.02)
    assert norm.k_proj.weight.std().item() == pytest.approx(xavier_std(512, 512, 2**-0.5), rel=0.02)
    assert norm.o_proj.weight.std().item() == pytest.approx(xavier_std(512, 512, 1.0), rel=0.02)
    assert norm.o_proj.bias.eq(0).all()
    assert not norm.q_proj.bias.eq(0).any()
    assert model.embed_tokens.weight.std().item() == pytest.approx(512**-0.5, rel=0.02)
    assert norm.rotation.reflection.norm().item() == pytest.approx(1.0)
    torch.testing.assert_close(norm.rotation.theta, 10000.0 ** -(torch.arange(32) / 32))


def test_masked_language_model_uses_berts():
    torch.manual_seed(0)
    model = tn.TransNormerForMaskedLM(tn.preset("t1-mlm", vocab_size=1000, num_hidden_layers=2))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert parameter.eq(0).all(), name
        elif parameter.dim() == 2:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.05), name


def test_the_seed_decides_the_weights():
    def build(seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed)
        return tn.TransNormerForCausalLM(tn.preset("t2-tiny")).state_dict()

    first, again, other = build(1), build(1), build(2)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", ["t1-lm", "t2-lm", "performer-lm"])
def test_a_model_built_on_meta_is_initialised_whole(name):
    """Buffers too: LRPE's reflection is drawn, not loaded."""
    config = tn.preset(name, vocab_size=50, num_hidden_layers=2, hidden_size=32, num_attention_heads=2)
    with torch.device("meta"):
        model = tn.TransNormerForCausalLM(config)
    model.to_empty(device="cpu")
    for tensor in (*model.parameters(), *model.buffers()):
        torch.nn.init.constant_(tensor, float("nan"))
    torch.manual_seed(1)
    model.init_weights()
    torch.manual_seed(1)
    expected = tn.TransNormerForCausalLM(config).state_dict()
    for name, tensor in model.state_dict().items():
        assert tensor.isfinite().all(), name
        assert tensor.shape == expected[name].shape
        if name.endswith("reflection"):
            assert tensor.norm().item() == pytest.approx(1.0)
