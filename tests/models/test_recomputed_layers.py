"""Gradient checkpointing: the same loss, gradients and buffers, from fewer kept activations."""

from __future__ import annotations

import pytest
import torch

import transnormer as tn
from transnormer.errors import ConfigError
from transnormer.mixers.registry import mixer_class


def model_of(mixer: str, layers: int = 2, **fields: object) -> tn.TransNormerForCausalLM | tn.TransNormerForMaskedLM:
    torch.manual_seed(0)
    config = tn.TransNormerConfig(
        vocab_size=50,
        hidden_size=32,
        num_attention_heads=1,
        num_hidden_layers=layers,
        mixers=[mixer] * layers,
        max_position_embeddings=128,
        causal=mixer_class(mixer).traits.causal,
        dropout=0.2,
        **fields,
    )
    head = tn.TransNormerForCausalLM if config.causal else tn.TransNormerForMaskedLM
    return head(config).train()


def ids_of(length: int = 48) -> torch.Tensor:
    return torch.randint(0, 50, (2, length), generator=torch.Generator().manual_seed(1))


def learned(model: torch.nn.Module, mask: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    """Loss, gradients and buffers after one backward pass, with the random numbers of a fixed seed."""
    model.zero_grad()
    torch.manual_seed(2)
    loss = model(ids_of(), attention_mask=mask, labels=ids_of()).loss
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), **gradients, **{name: b.clone() for name, b in model.named_buffers()}}


@pytest.mark.parametrize("mixer", tn.list_mixers())
def test_every_method_learns_the_same_with_dropout(mixer):
    model, mask = model_of(mixer), torch.ones(2, 48, dtype=torch.long)
    mask[1, :5] = 0
    plain = learned(model, mask)
    model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing
    again = learned(model, mask)
    assert plain.keys() == again.keys()
    for name, expected in plain.items():
        torch.testing.assert_close(again[name], expected, msg=name)
    torch.manual_seed(3)
    other = model(ids_of(), labels=ids_of()).loss
    assert other != plain["loss"]  # dropout was at work


def kept_bytes(model: torch.nn.Module) -> int:
    """Bytes of the activations that autograd keeps of one forward pass."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(ids_of(), labels=ids_of()).loss.backward()
    return sum(kept.values())


def test_a_layer_keeps_little_more_than_its_input():
    def of_a_layer(**options: object) -> float:
        sizes = []
        for layers in (2, 6):
            model = model_of("norm", layers)
            if options:
                model.gradient_checkpointing_enable(**options)
            sizes.append(kept_bytes(model))
        return (sizes[1] - sizes[0]) / 4

    values_of_the_input = 2 * 48 * 32 * 4
    assert of_a_layer() > 5 * values_of_the_input
    assert of_a_layer(gradient_checkpointing_kwargs={"use_reentrant": False}) < 2 * values_of_the_input


def test_layers_can_be_chosen_as_in_transformers():
    model = model_of("norm", 4)
    flags = lambda: [layer.gradient_checkpointing for layer in model.model.layers]  # noqa: E731
    model.gradient_checkpointing_enable(every_n_layers=2)
    assert flags() == [True, False, True, False]
    chosen = learned(model)
    model.gradient_checkpointing_disable()
    assert flags() == [False] * 4
    assert not model.is_gradient_checkpointing
    for name, expected in learned(model).items():
        torch.testing.assert_close(chosen[name], expected, msg=name)


def test_evaluation_and_decoding_are_as_ever():
    model = model_of("norm").eval()
    expected = model(ids_of()).logits
    model.gradient_checkpointing_enable()
    assert torch.equal(model(ids_of()).logits, expected)
    cache = tn.DecodeCache(model.config)
    with torch.no_grad():
        pieces = [model(ids_of()[:, a:b], past_key_values=cache).logits for a, b in ((0, 20), (20, 48))]
    torch.testing.assert_close(torch.cat(pieces, dim=1), expected)


def test_a_norm_that_would_count_each_batch_twice_is_refused():
    model = model_of("linformer", norm="batch")
    with pytest.raises(ConfigError, match="would count each batch twice"):
        model.gradient_checkpointing_enable()
    assert not model.is_gradient_checkpointing
