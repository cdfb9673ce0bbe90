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


def learn(rank: int, size: int) -> tuple[float, float, float, torch.Tensor]:
    """Of a piece: the loss, the MiB kept for the backward, those taken in all, and the gradient of the embedding."""
    torch.manual_seed(0)
    config = preset("t2-tiny", hidden_size=32, num_hidden_layers=4, num_attention_heads=2, intermediate_size=48)
    model = TransNormerForCausalLM(config)
    tokens = torch.randint(0, 256, (1, LENGTH + 1))
    inputs, targets = (x.chunk(size, dim=1)[rank] for x in (tokens[:, :-1], tokens[:, 1:]))
    context = Context(rank, size, torch.distributed.group.WORLD) if size > 1 else None
    kept: dict[int, int] = {}  # by where they lie: views share memory

    def keep(x: torch.Tensor) -> torch.Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    before = resident_mib("VmRSS")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        loss = model(inputs, targets=targets, context=context).loss
    loss.backward()
    gradient = model.model.embed_tokens.weight.grad
    return loss.item(), sum(kept.values()) / 2**20, resident_mib("VmHWM") - before, gradient


@pytest.mark.slow
def test_half_a_document_takes_half_the_memory() -> None:
    [(loss, kept, taken, gradient)] = run_in_group(1, learn, 1)
    pieces = run_in_group(2, learn, 2)
    print(f"one process: {kept:.0f} MiB kept, {taken:.0f} taken; two:", [(round(p[1]), round(p[2])) for p in pieces])
    assert kept > 500
    assert max(piece[1] for piece in pieces) < 0.53 * kept  # the sum of a piece keeps its keys and values once more
    assert max(piece[2] for piece in pieces) < 0.7 * taken  # some of which no process can do without
    assert sum(piece[0] for piece in pieces) == pytest.approx(loss, rel=1e-6)
    assert (sum(piece[3] for piece in pieces) - gradient).norm() < 1e-4 * gradient.norm()
