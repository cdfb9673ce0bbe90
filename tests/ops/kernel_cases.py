"""One check for every Triton kernel: err(kernel) ≤ 2·err(PyTorch in that dtype), for outputs and all gradients.

Used on the CPU through Triton's interpreter (small shapes) and on a GPU (all shapes).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from covering import covering
from torch import Tensor

# Below this relative error both paths are as good as the dtype of the reference allows.
FLOOR = 1e-5
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def relative(error: Tensor, reference: Tensor) -> float:
    return float(error.double().norm() / reference.double().norm().clamp(min=1e-6))


def combine(**factors: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrise by every combination; in the interpreter, which is slow, by few that hold every pair of values."""
    few = [tuple(row.values()) for row in covering(factors, 2)]
    return pytest.mark.parametrize(list(factors), few if INTERPRETED else product(*factors.values()), ids=str)


def outputs_and_gradients(function: Callable, inputs: list[Tensor], seed: int) -> list[Tensor]:
    """All outputs, then the gradients of a random combination of them."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    outputs = function(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    generator = torch.Generator().manual_seed(seed)
    loss = torch.zeros((), dtype=torch.float64, device=inputs[0].device)
    for out in outputs:
        weights = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.device)
        loss = loss + (out.double() * weights).sum()
    return [*(out.detach() for out in outputs), *torch.autograd.grad(loss, inputs)]


def outputs_alone(function: Callable, inputs: list[Tensor]) -> list[Tensor]:
    """All outputs, computed as where nothing is differentiated."""
    with torch.no_grad():
        outputs = function(*inputs)
    return [*outputs] if isinstance(outputs, tuple) else [outputs]


def check_kernel(
    kernel: Callable, plain: Callable, reference: Callable, inputs: list[Tensor], *, gradients: bool = True
) -> None:
    """`kernel` and `plain` in the dtype of the inputs, `reference` in float64."""
    results = partial(outputs_and_gradients, seed=1) if gradients else outputs_alone
    exact = results(reference, [x.double() for x in inputs])
    ours, theirs = results(kernel, inputs), results(plain, inputs)
    for index, (a, b, c) in enumerate(zip(ours, theirs, exact, strict=True)):
        assert a.isfinite().all(), f"result {index} is not finite"
        allowed = max(2 * relative(b.double() - c, c), FLOOR)
        found = relative(a.double() - c, c)
        assert found <= allowed, f"result {index}: kernel {found:.2e}, PyTorch allows {allowed:.2e}"
