"""Backbone and heads: masks, positions, pooling, pairs, and the ways a wrong call is refused."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

import transnormer as tn
from transnormer.errors import ConfigError
from transnormer.models.classifier import pool


def small(name: str = "t2-tiny", **overrides: object) -> tn.TransNormerConfig:
    return tn.preset(name, hidden_size=32, num_hidden_layers=2, dropout=0.0, attention_dropout=0.0, **overrides)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("method", ["t1", "t2", "vanilla", "linear_elu"])
@pytest.mark.parametrize("embedding", ["sinusoidal", "learned", "none"])
def test_padding_on_either_side_changes_nothing(side, method, embedding):
    torch.manual_seed(0)
    model = tn.TransNormerForCausalLM(small(f"{method}-tiny", position_embedding=embedding)).double().eval()
    ids = torch.randint(0, 256, (1, 100))
    padded, mask = torch.randint(0, 256, (1, 130)), torch.zeros(1, 130, dtype=torch.long)
    slots = slice(30, 130) if side == "left" else slice(0, 100)
    padded[:, slots], mask[:, slots] = ids, 1
    with torch.no_grad():
        out = model(padded, attention_mask=mask).logits[:, slots]
        torch.testing.assert_close(out, model(ids).logits, atol=1e-10, rtol=0)


def test_an_all_ones_mask_equals_no_mask():
    model = tn.TransNormerForMaskedLM(small(causal=False)).eval()
    ids = torch.randint(0, 256, (2, 70))
    torch.testing.assert_close(model(ids, attention_mask=torch.ones_like(ids)).logits, model(ids).logits)


def test_causal_models_do_not_look_ahead():
    model = tn.TransNormerForCausalLM(small()).eval()
    ids = torch.randint(0, 256, (1, 150))
    changed = ids.clone()
    changed[:, 100] = (changed[:, 100] + 1) % 256
    with torch.no_grad():
        before, after = model(ids).logits, model(changed).logits
    assert torch.equal(before[:, :100], after[:, :100])
    assert not torch.equal(before[:, 100:], after[:, 100:])


def test_causal_loss_is_the_mean_over_shifted_targets():
    model = tn.TransNormerForCausalLM(small()).eval()
    ids = torch.randint(0, 256, (2, 20))
    output = model(ids, labels=ids)
    expected = torch.nn.functional.cross_entropy(output.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(output.loss, expected)


def test_logits_to_keep_keeps_the_last():
    model = tn.TransNormerForCausalLM(small()).eval()
    ids = torch.randint(0, 256, (2, 20))
    torch.testing.assert_close(model(ids, logits_to_keep=1).logits, model(ids).logits[:, -1:])


def test_pooling_respects_the_mask():
    x = torch.arange(12.0).reshape(1, 6, 2)
    mask = torch.tensor([[0, 1, 1, 0, 1, 0]])
    assert pool(x, mask, "first").tolist() == [[2.0, 3.0]]
    assert pool(x, mask, "last").tolist() == [[8.0, 9.0]]
    assert pool(x, mask, "mean").tolist() == [pytest.approx([(2 + 4 + 8) / 3, (3 + 5 + 9) / 3])]
    assert pool(x, None, "mean").tolist() == [[5.0, 6.0]]
    assert pool(x, torch.zeros(1, 6), "mean").tolist() == [[0.0, 0.0]]
    assert pool(x, mask, "padded_mean", padded_length=28).tolist() == [pytest.approx([14 / 28, 17 / 28])]


@pytest.mark.parametrize("position_embedding", ["learned", "sinusoidal"])
def test_position_ids_are_those_of_the_embedding(position_embedding):
    config = small("vanilla-lra-listops", position_embedding=position_embedding)
    model = tn.TransNormerForSequenceClassification(config).eval()
    ids, mask = torch.randint(1, 32, (2, 20)), torch.rand(2, 20) < 0.5
    counted = (mask.long().cumsum(dim=1) - 1).clamp(min=0)
    torch.testing.assert_close(
        model(ids, attention_mask=mask, position_ids=counted).logits, model(ids, attention_mask=mask).logits
    )
    # Where every token has its place stated, their order means nothing to softmax attention.
    places, order = torch.arange(20).expand(2, 20), torch.randperm(20)
    torch.testing.assert_close(
        model(ids[:, order], attention_mask=mask[:, order], position_ids=places[:, order]).logits,
        model(ids, attention_mask=mask, position_ids=places).logits,
    )


@pytest.mark.parametrize("pooling", ["mean", "padded_mean", "first", "last"])
def test_classifier_trains_on_padded_input(pooling):
    config = small("t2-lra-listops", pooling=pooling)
    model = tn.TransNormerForSequenceClassification(config)
    ids, mask = torch.randint(0, 32, (4, 70)), torch.ones(4, 70, dtype=torch.long)
    mask[0, 10:] = 0
    output = model(ids, attention_mask=mask, labels=torch.tensor([0, 3, 9, 1]))
    assert output.logits.shape == (4, 10)
    output.loss.backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("head", [tn.TransNormerForCausalLM, tn.TransNormerForMaskedLM])
def test_language_models_take_positions(head):
    causal = head is tn.TransNormerForCausalLM
    model = head(small("vanilla-tiny", position_embedding="learned", causal=causal)).eval()
    ids, places = torch.randint(0, 256, (1, 20)), torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(model(ids, position_ids=places).logits, model(ids).logits)
        assert not torch.equal(model(ids, position_ids=places * 3).logits, model(ids).logits)


@pytest.mark.parametrize("lengths", [(40, 50), (50, 40), (40, 40)])
@pytest.mark.parametrize("masked", [(), (0,), (1,), (0, 1)])
def test_pair_head_sees_both_sides_through_one_encoder(lengths, masked):
    torch.manual_seed(0)
    model = tn.TransNormerForPairClassification(small("t2-lra-retrieval")).eval()
    sides = [torch.randint(0, 256, (2, length)) for length in lengths]
    masks = [torch.rand(2, length) < 0.7 if side in masked else None for side, length in enumerate(lengths)]
    with torch.no_grad():
        x, y = (
            pool(model.model(ids, attention_mask=mask).last_hidden_state, mask, "mean")
            for ids, mask in zip(sides, masks, strict=True)
        )
        expected = model.classifier(torch.cat([x, y, x * y, x - y], dim=-1))
        torch.testing.assert_close(model(*sides, *masks).logits, expected)


def test_pair_head_takes_one_set_of_statistics_from_both_sides():
    model = tn.TransNormerForPairClassification(small("t2-lra-retrieval", norm="batch")).train()
    norm = model.model.final_norm
    seen = []
    norm.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].shape[0]))
    model(torch.randint(0, 256, (2, 40)), torch.randint(0, 256, (2, 40)))
    assert seen == [4]


def test_pair_head_wants_as_many_on_both_sides():
    model = tn.TransNormerForPairClassification(small("t2-lra-retrieval"))
    with pytest.raises(ConfigError, match="2 sequences, but 3"):
        model(torch.zeros(2, 5, dtype=torch.long), torch.zeros(3, 5, dtype=torch.long))


def test_regression_when_there_is_one_label():
    model = tn.TransNormerForSequenceClassification(small("t2-lra-text", num_labels=1)).eval()
    ids, target = torch.randint(0, 256, (3, 10)), torch.tensor([0.5, 2.0, -1.0])
    output = model(ids, labels=target)
    torch.testing.assert_close(output.loss, (output.logits[:, 0] - target).square().mean())


def test_gradient_checkpointing_gives_the_same_gradients():
    torch.manual_seed(0)
    model = tn.TransNormerForCausalLM(small())
    ids = torch.randint(0, 256, (2, 80))
    model(ids, labels=ids).loss.backward()
    plain = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model(ids, labels=ids).loss.backward()
    for parameter, expected in zip(model.parameters(), plain, strict=True):
        torch.testing.assert_close(parameter.grad, expected)


def classifier(**overrides: object) -> tn.TransNormerForSequenceClassification:
    return tn.TransNormerForSequenceClassification(small("t2-lra-text", **overrides)).eval()


def test_values_in_a_column_are_those_of_their_rows():
    model, ids, values = classifier(num_labels=1), torch.randint(0, 256, (4, 20)), torch.randn(4)
    in_a_row = model(ids, labels=values).loss
    torch.testing.assert_close(model(ids, labels=values[:, None]).loss, in_a_row)
    with pytest.raises(ConfigError, match=re.escape("labels must be [4, 1]")):
        model(ids, labels=values[:2])


def test_the_loss_is_what_problem_type_says():
    functional, ids = torch.nn.functional, torch.randint(0, 256, (4, 20))
    values, several = torch.randn(4, 3), torch.tensor([[0, 1, 1], [0, 0, 0], [1, 0, 0], [1, 1, 1]])
    classes = torch.tensor([0, 2, 1, 1])
    for problem, labels, loss in (
        ("regression", values, functional.mse_loss),
        ("multi_label_classification", several.float(), functional.binary_cross_entropy_with_logits),
        ("single_label_classification", classes, functional.cross_entropy),
        ("single_label_classification", values.softmax(dim=-1), functional.cross_entropy),  # a distribution
        (None, classes, functional.cross_entropy),
        (None, several.float(), functional.binary_cross_entropy_with_logits),
    ):
        model = classifier(num_labels=3, problem_type=problem)
        output = model(ids, labels=labels)
        torch.testing.assert_close(output.loss, loss(output.logits, labels))
    model = classifier(num_labels=3, problem_type="multi_label_classification")
    torch.testing.assert_close(model(ids, labels=several).loss, model(ids, labels=several.float()).loss)
    with pytest.raises(ConfigError, match="multi_label"):
        model(ids, labels=classes)


def test_hidden_states_on_request():
    model = tn.TransNormerForCausalLM(small()).eval()
    output = model(torch.randint(0, 256, (2, 20)), output_hidden_states=True)
    assert len(output.hidden_states) == 3
    torch.testing.assert_close(model.lm_head(output.hidden_states[-1]), output.logits)


def test_hidden_states_of_a_classifier_and_by_config():
    ids = torch.randint(0, 256, (2, 20))
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    model = classifier()
    assert model(ids).hidden_states is None
    states = model(ids, attention_mask=mask, output_hidden_states=True).hidden_states
    assert [state.shape for state in states] == [(2, 20, 32)] * 3
    torch.testing.assert_close(states[-1], model.model(ids, attention_mask=mask).last_hidden_state)
    model.config.output_hidden_states = True
    for asked in (model, tn.TransNormerForCausalLM(small(output_hidden_states=True))):
        assert len(asked(ids).hidden_states) == 3
        assert asked(ids, output_hidden_states=False).hidden_states is None


def test_wrong_calls_say_what_is_wrong():
    with pytest.raises(ConfigError, match="needs a causal model"):
        tn.TransNormerForCausalLM(small(causal=False))
    with pytest.raises(ConfigError, match="needs a bidirectional model"):
        tn.TransNormerForMaskedLM(small())
    learned = tn.TransNormerModel(small(position_embedding="learned", max_position_embeddings=16))
    with pytest.raises(ConfigError, match="learned positions end at 16"):
        learned(torch.zeros(1, 17, dtype=torch.long))
    with pytest.raises(ConfigError, match="attention_mask must be"):
        learned(torch.zeros(1, 8, dtype=torch.long), attention_mask=torch.ones(1, 9))
    with pytest.raises(ConfigError, match="exactly one of input_ids and inputs_embeds, got neither"):
        learned()
    with pytest.raises(ConfigError, match="exactly one of input_ids and inputs_embeds, got both"):
        learned(torch.zeros(1, 8, dtype=torch.long), inputs_embeds=torch.zeros(1, 8, 32))
    with pytest.raises(ConfigError, match="no decode state"):
        tn.TransNormerModel(small(causal=False))(torch.zeros(1, 8, dtype=torch.long), use_cache=True)


def of_a_pair(side: str) -> Callable[..., object]:
    """The pair head as a function of one side's ids and mask."""
    model = tn.TransNormerForPairClassification(small("t2-lra-retrieval"))
    other = {f"{prefix}input_ids": torch.zeros(2, 6, dtype=torch.long) for prefix in ("", "pair_")}
    return lambda ids, **mask: model(**{**other, f"{side}input_ids": ids}, **mask)


@pytest.mark.parametrize(
    ("build", "side"),
    [
        (lambda: tn.TransNormerForCausalLM(small()), ""),
        (lambda: tn.TransNormerForMaskedLM(small(causal=False)), ""),
        (lambda: tn.TransNormerForSequenceClassification(small("t2-lra-text")), ""),
        (lambda: of_a_pair(""), ""),
        (lambda: of_a_pair("pair_"), "pair_"),
    ],
    ids=["causal", "masked", "classifier", "pair", "other of the pair"],
)
def test_wrong_ids_and_masks_say_what_to_type(build, side):
    call, ids, mask = build(), torch.randint(0, 256, (2, 8)), torch.ones(2, 8, dtype=torch.long)
    name, mask_name = f"{side}input_ids", f"{side}attention_mask"
    for wrong in (ids[0], ids[None], ids[:, :0]):
        message = rf"^{name} must be \[batch, tokens\], at least one token, got {re.escape(str(list(wrong.shape)))}"
        with pytest.raises(ConfigError, match=message) as caught:
            call(wrong)
        assert f"{name}[None]" in caught.value.hint
    for dtype in (torch.float32, torch.bool, torch.uint8):
        with pytest.raises(ConfigError, match=f"^{name} must be torch.int64 or torch.int32, got {dtype}") as caught:
            call(ids.to(dtype))
        assert f"{name}.long()" in caught.value.hint
    call(ids.int(), **{mask_name: mask.bool()})
    # As float an additive mask, 0 for a real token, would be read upside down.
    with pytest.raises(ConfigError, match=f"^{mask_name} must be bool or integers, 1 = real token, got torch.float32"):
        call(ids, **{mask_name: mask.float()})
    with pytest.raises(ConfigError, match=f"^{mask_name} must be"):
        call(ids, **{mask_name: mask[:, :7]})


@pytest.mark.parametrize("unknown", [-1, 259, 10**6])
def test_an_id_outside_the_vocabulary_is_named(unknown):
    model = tn.TransNormerForCausalLM(small())
    ids = torch.zeros(2, 8, dtype=torch.long)
    ids[1, 3] = unknown
    with pytest.raises(ConfigError, match=f"input_ids has {unknown}, but the vocabulary is 0 to 258") as caught:
        model(ids)
    assert "resize_token_embeddings" in caught.value.hint


def test_what_the_hint_about_unknown_ids_says_helps():
    model = tn.TransNormerForCausalLM(small())
    model.resize_token_embeddings(300)
    model(torch.tensor([[259, 299]]))
    with pytest.raises(ConfigError, match="input_ids has 300, but the vocabulary is 0 to 299"):
        model(torch.tensor([[0, 300]]))


def test_embeddings_of_the_wrong_shape_are_refused():
    model = tn.TransNormerModel(small())
    for wrong in (torch.zeros(2, 8, 31), torch.zeros(8, 32), torch.zeros(2, 0, 32)):
        with pytest.raises(ConfigError, match=r"inputs_embeds must be \[batch, tokens, 32\], at least one token, got"):
            model(inputs_embeds=wrong)


def test_amounts_may_have_any_dtype():
    """A table is looked up by whole numbers; a linear map takes what a picture is made of."""
    model = tn.TransNormerForSequenceClassification(small("t2-lra-image", embedding="number")).eval()
    pixels = torch.randint(0, 256, (2, 8))
    for dtype in (torch.uint8, torch.float32):
        assert torch.equal(model(pixels.to(dtype)).logits, model(pixels).logits)


@pytest.mark.parametrize("method", ["t2", "vanilla", "performer"])
def test_a_promise_of_right_padding_changes_nothing(method: str) -> None:
    torch.manual_seed(0)
    model = tn.TransNormerForSequenceClassification(tn.preset(f"{method}-lra-listops")).double().eval()
    ids, mask = torch.randint(1, 15, (3, 70)), torch.arange(70) < torch.tensor([[70], [64], [5]])
    plain, promised = (model(ids, attention_mask=mask, right_padded=given).logits for given in (False, True))
    torch.testing.assert_close(promised, plain, rtol=1e-10, atol=1e-10)
