"""The embedding whose gradient is a matrix product is an embedding."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from transnormer.models.embedding import lookup


def test_the_gradient_is_that_of_an_embedding() -> None:
    torch.manual_seed(0)
    weight = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(0, 7, (3, 50))
    ids[ids == 4] = 2  # a row that nothing looks up
    gradient = torch.randn(3, 50, 5, dtype=torch.float64)
    found = []
    for look_up in (lambda: lookup(weight, ids), lambda: F.embedding(ids, weight)):
        x = look_up()
        found.append((x, *torch.autograd.grad(x, weight, gradient)))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)
    assert not found[0][1][4].any()


def test_it_compiles() -> None:
    weight = torch.randn(7, 5, requires_grad=True)
    ids = torch.randint(0, 7, (3, 50))
    compiled = torch.compile(lambda: lookup(weight, ids).square().sum(), fullgraph=True, backend="aot_eager")
    [ours] = torch.autograd.grad(compiled(), weight)
    [expected] = torch.autograd.grad(F.embedding(ids, weight).square().sum(), weight)
    torch.testing.assert_close(ours, expected)
