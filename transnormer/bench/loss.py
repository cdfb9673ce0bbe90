"""What a vocabulary costs: the loss of a language model and its gradients, over the number of tokens to choose from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from transnormer.bench.ops import GateFailed
from transnormer.bench.timing import median_seconds, peak_bytes
from transnormer.ops import linear_cross_entropy
from transnormer.ops.linear_cross_entropy.reference import linear_cross_entropy_reference
from transnormer.step.execution import Execution

# Bytes; a small BPE; Llama 2; GPT-2, and padded as GPT-2's often is; Llama 3; the words of WikiText-103.
VOCABULARIES = (259, 8_000, 32_000, 50_257, 50_304, 128_256, 267_744)
TOKENS, WIDTH = {"cuda": 65_536, "cpu": 256}, 512
_GATE_TOKENS = 256
_ALLOWED = {"cuda": 2e-2, "cpu": 1e-4}  # a GPU multiplies in bfloat16


def measure_loss(vocabularies: Sequence[int], device: torch.device) -> Iterator[dict[str, Any]]:
    """A row for each vocabulary: time and peak memory of loss and gradients, executed as in training."""
    for vocabulary in vocabularies:
        execution = Execution("cuda_graph" if device.type == "cuda" else "eager", device, bf16=device.type == "cuda")
        inputs, targets = _problem(TOKENS[device.type], vocabulary, device)
        _check(inputs, targets, execution)
        run = execution.prepare(partial(_loss_and_gradients, execution.compile(_loss), inputs, targets, execution))
        seconds = median_seconds(run, device, at_least=0.5)
        yield {
            "vocabulary": vocabulary,
            "milliseconds": 1e3 * seconds,
            "microseconds_a_column": 1e6 * seconds / vocabulary,
            "peak_bytes": peak_bytes(run, device),
        }


def _problem(tokens: int, vocabulary: int, device: torch.device) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    shapes = (tokens, WIDTH), (vocabulary, WIDTH)
    x, weight = (torch.randn(shape, generator=generator, device=device).requires_grad_() for shape in shapes)
    with torch.no_grad():
        x *= 2 * WIDTH**-0.5  # logits of a model that has learned something
    return [x, weight], torch.randint(0, vocabulary, (tokens,), generator=generator, device=device)


def _loss(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return linear_cross_entropy(x, weight, None, targets)


def _loss_and_gradients(
    loss: Callable[..., Tensor], inputs: Sequence[Tensor], targets: Tensor, execution: Execution
) -> tuple[Tensor, ...]:
    """As a training step computes them."""
    with execution.autocast():
        total = loss(*inputs, targets)
    return (total.detach(), *torch.autograd.grad(total, inputs))


def _check(inputs: Sequence[Tensor], targets: Tensor, execution: Execution) -> None:
    """The gate: on some of the tokens, loss and gradients are those of the definition in float64."""
    x, weight = inputs
    some = [x.detach()[:_GATE_TOKENS].requires_grad_(), weight]
    found = _loss_and_gradients(_loss, some, targets[:_GATE_TOKENS], execution)
    exact = [tensor.detach().double().requires_grad_() for tensor in some]
    loss = linear_cross_entropy_reference(exact[0], exact[1], None, targets[:_GATE_TOKENS])
    for a, b in zip(found, (loss.detach(), *torch.autograd.grad(loss, exact)), strict=True):
        error = float((a.double() - b).norm() / b.norm())
        if not error <= _ALLOWED[x.device.type]:
            raise GateFailed(f"a vocabulary of {len(weight):,}: relative error {error:.2e} against float64")
