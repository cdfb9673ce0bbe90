"""The embedding whose gradient is a matrix product is an embedding; the other one is a straight line."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from transnormer.errors import ConfigError
from transnormer.models.backbone import TransNormerModel
from transnormer.models.embedding import lookup
from transnormer.models.heads import (
    TransNormerForCausalLM,
    TransNormerForMaskedLM,
    TransNormerForSequenceClassification,
)
from transnormer.models.presets import preset


def test_the_gradient_is_that_of_an_embedding() -> None:
    torch.manual_seed(0)
    weight = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(0, 7, (3, 50))
    ids[ids == 4] = 2  # a row that nothing looks up
    gradient = torch.randn(3, 50, 5, dtype=torch.float64)
    found = []
    for look_up in (lambda: lookup(weight, ids), lambda: F.embedding(ids, weight)):
        x = look_up()
        found.append((x, *torch.autograd.grad(x, weight, gradient)))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)
    assert not found[0][1][4].any()


def test_it_compiles() -> None:
    weight = torch.randn(7, 5, requires_grad=True)
    ids = torch.randint(0, 7, (3, 50))
    compiled = torch.compile(lambda: lookup(weight, ids).square().sum(), fullgraph=True, backend="aot_eager")
    [ours] = torch.autograd.grad(compiled(), weight)
    [expected] = torch.autograd.grad(F.embedding(ids, weight).square().sum(), weight)
    torch.testing.assert_close(ours, expected)


def test_numbers_lie_on_a_line() -> None:
    """Black is -1, white is +1, and what lies between is in proportion; a learned map of one number, nothing more."""
    model = TransNormerForSequenceClassification(preset("t2-lra-image", embedding="number"))
    embed = model.get_input_embeddings()
    assert sum(parameter.numel() for parameter in embed.parameters()) == 2 * 64
    ids = torch.tensor([[0, 51, 255]])
    black, between, white = embed(ids)[0]
    torch.testing.assert_close(white - black, 2 * embed.weight[:, 0])
    torch.testing.assert_close(between, 0.8 * black + 0.2 * white)
    assert model(input_ids=ids).logits.shape == (1, 10)


@pytest.mark.parametrize(("head", "size"), [(TransNormerForCausalLM, "tiny"), (TransNormerForMaskedLM, "mlm")])
def test_a_language_model_needs_a_table(head, size) -> None:
    with pytest.raises(ConfigError, match="predicts tokens"):
        head(preset(f"t2-{size}", embedding="number"))


@pytest.mark.parametrize("right_padded", [True, False])
def test_embedded_padding_that_is_no_number_reaches_no_token(right_padded):
    torch.manual_seed(0)
    model = TransNormerModel(preset("t2-lm", vocab_size=50, num_hidden_layers=2, hidden_size=32)).eval()
    x = torch.randn(2, 70, 32)
    mask = torch.ones(2, 70, dtype=torch.long)
    mask[1, 60:] = 0
    poisoned = x.masked_fill(mask[..., None] == 0, float("nan"))
    found, expected = (
        model(inputs_embeds=each, attention_mask=mask, right_padded=right_padded).last_hidden_state
        for each in (poisoned, x)
    )
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()])
    [gradient] = torch.autograd.grad(found[mask.bool()].sum(), [model.layers[0].mixer.q_proj.weight])
    assert gradient.isfinite().all()
