"""What transformers' own tests ask of every model of its library, asked of ours."""

from __future__ import annotations

import copy

import pytest
import torch

import transnormer as tn
from transnormer.errors import ConfigError

CAUSAL = {"t1": "t1-tiny", "t2": "t2-tiny", "vanilla": "vanilla-tiny", "linear_elu": "linear_elu-tiny"}
HEADS = {
    "causal": lambda: tn.TransNormerForCausalLM(small("t2-tiny")),
    "masked": lambda: tn.TransNormerForMaskedLM(small("t2-tiny", causal=False)),
    "sequence": lambda: tn.TransNormerForSequenceClassification(small("t2-tiny", causal=False, num_labels=3)),
    "backbone": lambda: tn.TransNormerModel(small("t2-tiny")),
}


def small(name: str, **fields: object) -> tn.TransNormerConfig:
    torch.manual_seed(0)
    return tn.preset(name, vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, **fields)


def causal(method: str = "t2", **fields: object) -> tn.TransNormerForCausalLM:
    return tn.TransNormerForCausalLM(small(CAUSAL[method], **fields)).eval()


def ids_of(batch: int = 2, length: int = 40) -> torch.Tensor:
    return torch.randint(1, 99, (batch, length), generator=torch.Generator().manual_seed(1))  # 0 is padding


@pytest.mark.parametrize("head", HEADS)
@torch.no_grad()
def test_outputs_are_the_same_by_name_as_a_tuple_and_twice(head):
    model = HEADS[head]().eval()
    named, again = model(ids_of()), model(ids_of(), return_dict=False)
    assert isinstance(again, tuple)
    assert torch.equal(named[0], again[0])
    assert named.hidden_states is None
    assert named.attentions is None


@pytest.mark.parametrize("head", HEADS)
@torch.no_grad()
def test_hidden_states_are_one_more_than_layers_where_asked_for(head):
    model = HEADS[head]().eval()
    by_argument = model(ids_of(), output_hidden_states=True).hidden_states
    model.config.output_hidden_states = True
    by_config = model(ids_of()).hidden_states
    assert [tuple(states.shape) for states in by_argument] == [(2, 40, 32)] * 3
    assert all(torch.equal(a, b) for a, b in zip(by_argument, by_config, strict=True))
    assert torch.equal(by_argument[-1], model.base_model(ids_of()).last_hidden_state)


def test_hidden_states_keep_their_gradients():
    model = causal().train()
    output = model(ids_of(), output_hidden_states=True)
    for states in output.hidden_states:
        states.retain_grad()
    output.logits[0, -1, 0].backward()
    assert all(states.grad is not None for states in output.hidden_states)


@pytest.mark.parametrize("head", HEADS)
@torch.no_grad()
def test_embedded_inputs_give_what_their_ids_give(head):
    model = HEADS[head]().eval()
    embedded = model.get_input_embeddings()(ids_of())
    assert torch.equal(model(inputs_embeds=embedded)[0], model(ids_of())[0])


@pytest.mark.parametrize("method", CAUSAL)
def test_generation_begins_with_embedded_inputs_too(method):
    model = causal(method)
    embedded = model.get_input_embeddings()(ids_of())
    new = model.generate(inputs_embeds=embedded, max_new_tokens=5, do_sample=False, pad_token_id=0)
    assert torch.equal(new, model.generate(ids_of(), max_new_tokens=5, do_sample=False, pad_token_id=0)[:, 40:])


@pytest.mark.parametrize("head", ["causal", "masked"])
@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_a_vocabulary_grows_and_shrinks_with_its_head(head, tied, tmp_path):
    cls = {"causal": tn.TransNormerForCausalLM, "masked": tn.TransNormerForMaskedLM}[head]
    model = cls(small("t2-tiny", causal=head == "causal", tie_word_embeddings=tied)).eval()
    before = model(ids_of()).logits
    model.resize_token_embeddings(110, mean_resizing=False)
    decoder = model.get_output_embeddings()
    assert (model.config.vocab_size, decoder.out_features, len(decoder.weight)) == (110, 110, 110)
    assert (decoder.weight is model.get_input_embeddings().weight) is tied
    torch.testing.assert_close(model(ids_of()).logits[..., :99], before)
    assert model(torch.tensor([[109]])).logits.shape == (1, 1, 110)
    model.save_pretrained(tmp_path)
    assert torch.equal(cls.from_pretrained(tmp_path)(ids_of()).logits, model(ids_of()).logits)
    model.resize_token_embeddings(99)
    torch.testing.assert_close(model(ids_of()).logits, before)


@pytest.mark.parametrize("head", ["causal", "masked"])
def test_tied_weights_are_one_tensor_after_every_way_to_move_them(head, tmp_path):
    model = HEADS[head]()
    model.save_pretrained(tmp_path)
    for moved in (model, copy.deepcopy(model), type(model).from_pretrained(tmp_path), model.to(torch.float64)):
        assert moved.get_output_embeddings().weight is moved.get_input_embeddings().weight
    with torch.device("meta"):
        empty = type(model)(model.config)
    empty.to_empty(device="cpu")
    empty.tie_weights()
    assert empty.get_output_embeddings().weight is empty.get_input_embeddings().weight


@pytest.mark.parametrize("head", HEADS)
@torch.no_grad()
def test_a_state_dict_goes_through_torch_save(head, tmp_path):
    model, other = HEADS[head]().eval(), HEADS[head]().eval()
    for parameter in model.parameters():
        parameter.add_(0.1)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert torch.equal(other(ids_of())[0], model(ids_of())[0])


@torch.no_grad()
def test_training_drops_out_and_evaluation_does_not():
    model = causal(dropout=0.3)
    assert torch.equal(model(ids_of()).logits, model(ids_of()).logits)
    model.train()
    assert not torch.equal(model(ids_of()).logits, model(ids_of()).logits)


@pytest.mark.parametrize("method", CAUSAL)
def test_every_parameter_gets_a_gradient(method):
    model = causal(method).train()
    model(ids_of(), labels=ids_of()).loss.backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []


@pytest.mark.parametrize("method", CAUSAL)
@torch.no_grad()
def test_a_cache_answers_for_its_shapes(method):
    model = causal(method)
    cache, kinds = tn.DecodeCache(model.config), model.config.layer_types
    assert (cache.get_seq_length(), len(cache)) == (0, 2)
    assert cache.is_croppable == (method == "vanilla")
    model(ids_of(), past_key_values=cache)
    for index, kind in enumerate(kinds):
        assert cache.get_seq_length(index) == 40
        assert cache.get_mask_sizes(3, index) == (43, 0)
        # 64 is the block of DiagAttention; -1 means no end.
        assert cache.get_max_length(index) == (64 if kind == "chunked_attention" else -1)
        if kind == "linear_attention":
            assert cache.has_previous_state(index)
            assert cache.get_recurrent_state(index).shape[0] == 2
        else:
            assert cache.layers[index].keys.shape == (2, 2, 40, 16)
    cache.reset()
    assert cache.get_seq_length() == 0
    fresh = model(ids_of(), past_key_values=tn.DecodeCache(model.config)).logits
    torch.testing.assert_close(model(ids_of(), past_key_values=cache).logits, fresh)


@torch.no_grad()
def opinionated(method: str, seed: int) -> tn.TransNormerForCausalLM:
    """A model that predicts otherwise than one of another seed."""
    model = causal(method, tie_word_embeddings=False)
    torch.manual_seed(seed)
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter))
    return model


def test_assisted_generation_works_where_all_keys_are_kept():
    model, other, prompt = opinionated("vanilla", 1), opinionated("vanilla", 2), ids_of(1)
    arguments = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(prompt, **arguments)
    assert not torch.equal(other.generate(prompt, **arguments), expected)  # so that drafts are thrown away
    for how in ({"assistant_model": other}, {"prompt_lookup_num_tokens": 3}):
        assert torch.equal(model.generate(prompt, **arguments, **how), expected)
    with pytest.raises(ConfigError, match="before its last tokens"):
        model.generate(prompt, **arguments, assistant_model=opinionated("t2", 2))


@pytest.mark.parametrize("method", ["t1", "t2", "linear_elu"])
def test_assisted_generation_is_refused_where_a_state_cannot_be_rolled_back(method):
    with pytest.raises(ValueError, match="not supported with stateful models"):
        causal(method).generate(ids_of(1), prompt_lookup_num_tokens=3, max_new_tokens=4, pad_token_id=0)
