"""One check for every Triton kernel: err(kernel) ≤ 2·err(PyTorch in that dtype), for outputs and all gradients.

Used on the CPU through Triton's interpreter (small shapes) and on a GPU (all shapes).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

# Below this relative error both paths are as good as the dtype of the reference allows.
FLOOR = 1e-5


def relative(error: Tensor, reference: Tensor) -> float:
    return float(error.double().norm() / reference.double().norm().clamp(min=1e-6))


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


def passes_in_the_interpreter(file: str) -> None:
    """Run the tests of a file once more, with kernels: Triton decides at import, once a process, if it interprets."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", file]
    done = subprocess.run(command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
