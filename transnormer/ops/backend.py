"""Which implementation an op runs: `auto`, `torch` or `triton`, decided per call and never switched silently.

An op `ops/<name>/` has a Triton path when it has a file `kernel.py`. That file offers `why_not(**call) -> str | None`:
the reason why it cannot serve a call with these tensors, or None when it can. `auto` takes the kernel for CUDA tensors
that it can serve and plain PyTorch otherwise; `triton` takes the kernel or raises with that reason.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from dataclasses import dataclass
from types import ModuleType

import torch

from transnormer.errors import ConfigError, did_you_mean

BACKENDS = ("auto", "torch", "triton")
OPS = (
    "norm_attention",
    "diag_attention",
    "rotated_attention",
    "decode_step",
    "skinny_linear",
    "random_features",
    "rms_norm",
    "rotate",
    "feed_forward",
    "linear_cross_entropy",
)
ENVIRONMENT_VARIABLE = "TRANSNORMER_BACKEND"


@dataclass(frozen=True)
class Choice:
    """The backend of one call and the reason for it."""

    op: str
    backend: str
    reason: str

    def __str__(self) -> str:
        return f"{self.op}: {self.backend} ({self.reason})"


def load_kernel(op: str) -> ModuleType | None:
    """The Triton module of an op, or None where triton is not installed; called once, when the op is imported."""
    if importlib.util.find_spec("triton") is None:
        return None
    return importlib.import_module(f"transnormer.ops.{op}.kernel")


def choose(
    op: str, kernel: ModuleType | None, requested: str | None, device: torch.device | str, **call: object
) -> Choice:
    """Resolve the backend of one call; `requested=None` reads TRANSNORMER_BACKEND and defaults to `auto`."""
    wanted = requested or os.environ.get(ENVIRONMENT_VARIABLE) or "auto"
    if wanted not in BACKENDS:
        raise ConfigError(f"unknown backend '{wanted}' for {op}", did_you_mean(wanted, BACKENDS))
    if wanted == "torch":
        return Choice(op, "torch", "asked for")
    device_type = torch.device(device).type
    if wanted == "auto" and device_type != "cuda":
        return Choice(op, "torch", f"tensors are on {device_type}; Triton kernels serve CUDA")
    problem = "triton is not installed" if kernel is None else kernel.why_not(device=device_type, **call)
    if problem is None:
        return Choice(op, "triton", "asked for" if wanted == "triton" else "CUDA tensors that the kernel can serve")
    if wanted == "triton":
        raise ConfigError(f"{op}: backend 'triton' cannot run: {problem}", "use backend='auto' or 'torch'")
    return Choice(op, "torch", problem)


def explain(op: str, device: torch.device | str = "cpu", backend: str | None = None, **call: object) -> Choice:
    """What a call of `op` on `device` would run, and why: the same decision as the call itself makes."""
    if op not in OPS:
        raise ConfigError(f"unknown op '{op}'", did_you_mean(op, OPS))
    return choose(op, load_kernel(op), backend, device, **call)
