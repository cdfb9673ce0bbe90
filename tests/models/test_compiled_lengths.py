"""Compiled again for a second length, a model serves all lengths beyond one block; a third program serves the rest."""

from __future__ import annotations

import pytest
import torch

import transnormer as tn

LENGTHS = (65, 100, 130, 200, 256, 2500)  # of more than a block of 64; two blocks, three, whole ones, several segments
SHORT = (31, 64, 40)


class Programs:
    """Compiles as PyTorch's `aot_eager` does, and counts how often it was asked to."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph, inputs):
        self.count += 1
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("preset", ["t1-tiny", "t2-tiny"])
def test_two_programs_serve_all_lengths_beyond_a_block(preset: str, causal: bool) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    config = tn.preset(preset, num_hidden_layers=2, causal=causal)
    model = tn.TransNormerForCausalLM(config) if causal else tn.TransNormerForMaskedLM(config)
    programs = Programs()
    compiled = torch.compile(model.eval(), fullgraph=True, backend=programs)
    counts = []
    for length in LENGTHS + SHORT:
        ids = torch.randint(config.vocab_size, (2, length))
        found, expected = ((run(ids).logits ** 2).mean() for run in (compiled, model))
        torch.testing.assert_close(found, expected)
        for a, b in zip(*(torch.autograd.grad(loss, [*model.parameters()]) for loss in (found, expected)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
        counts.append(programs.count)
    torch.compiler.reset()
    assert counts == [1, 2, 2, 2, 2, 2, 3, 3, 3]


def test_told_that_lengths_differ_the_first_program_serves_them() -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    config = tn.preset("t2-tiny", num_hidden_layers=2)
    model = tn.TransNormerForCausalLM(config)
    programs = Programs()
    compiled = torch.compile(model.eval(), fullgraph=True, dynamic=True, backend=programs)
    counts = []
    for length in LENGTHS:
        ids = torch.randint(config.vocab_size, (2, length))
        loss = compiled(ids).logits.square().mean()
        loss.backward()
        torch.testing.assert_close(loss, model(ids).logits.square().mean())
        counts.append(programs.count)
    torch.compiler.reset()
    assert len(set(counts)) == 1  # not that it is 1: the compiler may try a program, and start over
