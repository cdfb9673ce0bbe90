"""A document of 131,072 tokens that two processes share takes each of them half of the memory for activations."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from process_group import run_in_group

from transnormer.mixers.components.context import Context
from transnormer.models.heads import TransNormerForCausalLM
from transnormer.models.presets import preset

LENGTH = 2**17


def resident_mib(kind: str) -> float:
    """VmRSS, the memory of this process, or VmHWM, the most that it has had."""
    found = re.search(rf"{kind}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) / 1024


def learn(rank: int, size: int) -> tuple[float, float, torch.Tensor]:
    """The loss, the MiB that a step of learning has taken, and the gradient of the embedding, on a piece."""
    torch.manual_seed(0)
    config = preset("t2-tiny", hidden_size=32, num_hidden_layers=4, num_attention_heads=2, intermediate_size=48)
    model = TransNormerForCausalLM(config)
    tokens = torch.randint(0, 256, (1, LENGTH + 1))
    inputs, targets = (x.chunk(size, dim=1)[rank] for x in (tokens[:, :-1], tokens[:, 1:]))
    context = Context(rank, size, torch.distributed.group.WORLD) if size > 1 else None
    before = resident_mib("VmRSS")
    loss = model(inputs, targets=targets, context=context).loss
    loss.backward()
    gradient = model.model.embed_tokens.weight.grad
    return loss.item(), resident_mib("VmHWM") - before, gradient


@pytest.mark.slow
def test_half_a_document_takes_half_the_memory() -> None:
    [(loss, alone, gradient)] = run_in_group(1, learn, 1)
    (first_loss, first, first_gradient), (second_loss, second, second_gradient) = run_in_group(2, learn, 2)
    print(f"one process: {alone:.0f} MiB; two: {first:.0f} and {second:.0f} MiB")
    assert alone > 500
    assert max(first, second) < 0.6 * alone  # what each process needs whatever the length is not halved
    assert first_loss + second_loss == pytest.approx(loss, rel=1e-6)
    error = (first_gradient + second_gradient - gradient).norm() / gradient.norm()
    assert error < 1e-4
