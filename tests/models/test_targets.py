"""`targets`: the loss of a language model without its logits equals the one with them, in every gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import transnormer as tn
from transnormer.errors import ConfigError

HEADS = {True: tn.TransNormerForCausalLM, False: tn.TransNormerForMaskedLM}


def build(causal: bool, **overrides: object) -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 131, "dropout": 0.0, "attention_dropout": 0.0}
    model = HEADS[causal](tn.preset("t2-tiny", causal=causal, **sizes | overrides))
    with torch.no_grad():
        for parameter in model.parameters():  # biases that start at zero would hide their own absence
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return model


def batch(length: int = 70) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids, targets = (torch.randint(0, 131, (2, length), generator=generator) for _ in range(2))
    targets[torch.rand(targets.shape, generator=generator) < 0.3] = -100
    return ids, targets


def gradients(model: torch.nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    (loss / 7).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("causal", "bias"), [(True, False), (True, True), (False, True)])
def test_equals_the_loss_of_the_logits_in_every_gradient(causal, bias, tied):
    model = build(causal, lm_head_bias=bias, tie_word_embeddings=tied).double()
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == tied
    ids, targets = batch()
    output = model(ids, targets=targets)
    assert output.logits is None
    expected = F.cross_entropy(model(ids).logits.flatten(0, 1), targets.flatten(), reduction="sum")
    torch.testing.assert_close(output.loss, expected, atol=1e-10, rtol=1e-10)
    ours, theirs = gradients(model, output.loss), gradients(model, expected)
    assert ours.keys() == theirs.keys()
    assert any(name.endswith("bias") for name in ours)
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, atol=1e-10, rtol=1e-10, msg=name)


@pytest.mark.parametrize("most", [30, 40, 70, 100])
def test_a_head_on_the_masked_positions_alone_changes_nothing(most):
    model = build(causal=False).double()
    ids, targets = batch()
    targets[:, 30:] = -100
    seen: list[tuple[int, ...]] = []
    hook = model.lm_head.dense.register_forward_hook(lambda _, inputs, output: seen.append(tuple(output.shape)))
    ours, theirs = model(ids, targets=targets, most_targets=most).loss, model(ids, targets=targets).loss
    hook.remove()
    assert [shape[1] for shape in seen] == [min(most, 70), 70]
    torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)
    found, expected = gradients(model, ours), gradients(model, theirs)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-10, rtol=1e-10, msg=name)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    loss = compiled(ids, targets=targets, most_targets=most).loss
    torch.testing.assert_close(loss, theirs, atol=1e-10, rtol=1e-10)
    for name, gradient in gradients(model, loss).items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-10, rtol=1e-10, msg=name)


@pytest.mark.parametrize("causal", [True, False])
def test_torch_compile_sees_the_whole_loss(causal):
    model = build(causal)
    ids, targets = batch()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    ours, theirs = compiled(ids, targets=targets).loss, model(ids, targets=targets).loss
    torch.testing.assert_close(ours, theirs)
    found, expected = gradients(model, ours), gradients(model, theirs)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, msg=name)


@pytest.mark.parametrize("causal", [True, False])
def test_autocast_gives_a_float32_loss_near_that_of_the_logits(causal):
    model = build(causal)
    ids, targets = batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = model(ids, targets=targets).loss
        theirs = F.cross_entropy(model(ids).logits.float().flatten(0, 1), targets.flatten(), reduction="sum")
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=0)
    found, expected = gradients(model, ours), gradients(model, theirs)
    for name, gradient in expected.items():
        assert found[name].dtype == torch.float32
        assert (found[name] - gradient).norm() < 0.03 * gradient.norm() + 1e-4, name


class Shapes(TorchDispatchMode):
    """The shapes of all tensors that operations return."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.seen.add(tuple(tensor.shape))
        return result


@pytest.mark.parametrize("causal", [True, False])
def test_the_model_makes_no_logits(causal):
    model, (ids, targets) = build(causal), batch()
    logits = {(2, 70, 131), (140, 131), (131, 140)}
    with Shapes() as plain:
        model(ids)
    with Shapes() as ours:
        model(ids, targets=targets).loss.backward()
    assert plain.seen & logits
    assert not ours.seen & logits


def test_padding_hidden_states_and_gradient_checkpointing_work_as_ever():
    model, (ids, targets) = build(True), batch()
    mask = torch.ones_like(ids)
    mask[0, 50:], targets[0, 50:] = 0, -100
    output = model(ids, attention_mask=mask, targets=targets, output_hidden_states=True)
    logits = model.lm_head(output.hidden_states[-1])
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    torch.testing.assert_close(output.loss, expected)
    plain = gradients(model, output.loss)
    model.gradient_checkpointing_enable()
    again = gradients(model, model(ids, attention_mask=mask, targets=targets).loss)
    for name, gradient in plain.items():
        torch.testing.assert_close(again[name], gradient, msg=name)


def test_wrong_calls_say_what_is_wrong():
    ids, targets = batch()
    for causal in (True, False):
        model = build(causal)
        with pytest.raises(ConfigError, match="labels or targets, not both"):
            model(ids, targets=targets, labels=targets)
        with pytest.raises(ConfigError, match=r"targets must be \[B, T\] = \[2, 70\], got \[2, 69\]"):
            model(ids, targets=targets[:, 1:])


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("causal", [True, False])
def test_a_gpu_under_autocast_is_near_the_cpu(causal, compiled):
    model, (ids, targets) = build(causal), batch(200)
    expected = model(ids, targets=targets).loss
    exact = gradients(model, expected)
    model.cuda()
    run = torch.compile(model, fullgraph=True) if compiled else model
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = run(ids.cuda(), targets=targets.cuda()).loss
    torch.testing.assert_close(loss.cpu(), expected, rtol=2e-2, atol=0)
    for name, gradient in gradients(model, loss).items():
        error = (gradient.cpu() - exact[name]).norm() / exact[name].norm().clamp(min=1e-4)
        assert error < 0.1, f"{name}: {error:.2e}"
