"""Layers that are not what they were are called, and not replaced by a product with their weights."""

from __future__ import annotations

import pytest
import torch
from accelerate.hooks import ModelHook, add_hook_to_module
from torch import Tensor, nn

import transnormer as tn
from transnormer.mixers import contract
from transnormer.mixers.components.linear import are_plain, have_biases
from transnormer.models import layers


class Adapted(nn.Module):
    """A low-rank adapter around a linear layer, with the attributes of what it wraps."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.weight, self.bias = base.weight, base.bias
        self.down = nn.Parameter(torch.randn(2, base.in_features))
        self.up = nn.Parameter(torch.randn(base.out_features, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.T @ self.up.T


class Quantised(nn.Linear):
    """Somebody's subclass."""


class Packed(Tensor):
    """Somebody's numbers, that only their own product knows."""


def test_what_is_plain() -> None:
    plain, hooked, patched, packed = (nn.Linear(4, 4) for _ in range(4))
    mixer = tn.build_mixer("norm", hidden_size=8, num_heads=2, causal=True, max_length=8)
    assert are_plain(plain, mixer.q_proj)
    hooked.register_forward_hook(lambda *_: None)
    add_hook_to_module(patched, ModelHook())
    packed.weight = nn.Parameter(packed.weight.detach().as_subclass(Packed))
    for other in (hooked, patched, packed, Adapted(plain), Quantised(4, 4), nn.Identity()):
        assert not are_plain(plain, other)


@pytest.mark.parametrize("name", ["mixer.q_proj", "mixer.v_proj", "feed_forward.up_proj", "feed_forward.down_proj"])
def test_an_adapter_is_called_where_weights_would_be_packed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where LoRA's parameters would otherwise silently learn nothing."""
    for module in (contract, layers):
        monkeypatch.setattr(module, "should_pack", lambda _, *parts: are_plain(*parts))
    torch.manual_seed(0)
    model = tn.TransNormerForCausalLM(tn.preset("t2-tiny", dropout=0.0)).eval()
    ids = torch.randint(0, 256, (2, 20))
    before = model(ids).logits
    parent, _, child = f"model.layers.0.{name}".rpartition(".")
    adapter = Adapted(model.get_submodule(f"{parent}.{child}"))
    setattr(model.get_submodule(parent), child, adapter)
    assert not torch.allclose(model(ids).logits, before)
    model(ids, labels=ids).loss.backward()
    assert adapter.up.grad.abs().sum() > 0


def test_a_compiler_can_see_what_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decision is made inside compiled models, in one graph; a layer of each kind will do."""
    answers = []

    def pack(_: Tensor, *parts: nn.Module) -> bool:
        answers.append(are_plain(*parts) and have_biases(*parts))
        return answers[-1]

    for module in (contract, layers):
        monkeypatch.setattr(module, "should_pack", pack)
    torch.manual_seed(0)
    model = tn.TransNormerForCausalLM(tn.preset("t2-tiny", dropout=0.0, num_hidden_layers=2)).eval()
    ids = torch.randint(0, 256, (2, 20))
    compiled = torch.compile(lambda: model(ids, targets=ids).loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(), model(ids, targets=ids).loss)
    assert answers
    assert all(answers)
    torch.compiler.reset()


def test_an_adapter_of_the_output_layer_is_called_for_the_loss() -> None:
    torch.manual_seed(0)
    model = tn.TransNormerForCausalLM(tn.preset("t2-tiny", dropout=0.0, tie_word_embeddings=False)).eval()
    ids = torch.randint(0, 256, (2, 20))
    model.lm_head = Adapted(model.lm_head)
    loss = model(ids, targets=ids).loss
    expected = nn.functional.cross_entropy(model(ids).logits.flatten(0, 1), ids.flatten(), reduction="sum")
    torch.testing.assert_close(loss, expected)
