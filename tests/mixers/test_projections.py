"""Queries, keys and values from one matrix product are those of three."""

from __future__ import annotations

import torch

from transnormer.mixers.registry import build_mixer


def test_one_product_gives_what_three_give() -> None:
    torch.manual_seed(0)
    mixer = build_mixer("norm", hidden_size=32, num_heads=2, causal=True, max_length=16).double()
    x = torch.randn(2, 5, 32, dtype=torch.float64, requires_grad=True)
    parameters = [parameter for name, parameter in mixer.named_parameters() if name.split("_")[0] in ("q", "k", "v")]
    assert len(parameters) == 6
    found = []
    for project in (mixer.project, lambda x: mixer.project_packed(x).unbind(2)):
        parts = project(x)
        assert [part.shape for part in parts] == [(2, 5, 2, 16)] * 3
        loss = sum((number + 1) * part.square().sum() for number, part in enumerate(parts))
        found.append((*parts, *torch.autograd.grad(loss, [x, *parameters])))
    for ours, expected in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)
