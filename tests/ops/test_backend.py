"""The backend switch says what runs and why, and never changes its mind silently."""

from __future__ import annotations

import pytest
import torch

from transnormer.errors import ConfigError
from transnormer.ops import norm_attention
from transnormer.ops.backend import OPS, explain


@pytest.mark.parametrize("op", OPS)
def test_cpu_tensors_run_on_torch_and_say_so(op):
    choice = explain(op, device="cpu")
    assert choice.backend == "torch"
    assert "cpu" in choice.reason


def test_asking_for_triton_on_the_cpu_is_an_error_not_a_fallback():
    x = torch.randn(1, 4, 1, 4)
    with pytest.raises(ConfigError, match="backend 'triton' cannot run"):
        norm_attention(x, x, x, causal=True, backend="triton")


def test_the_environment_variable_is_the_default(monkeypatch):
    monkeypatch.setenv("TRANSNORMER_BACKEND", "torch")
    assert explain("norm_attention", "cpu").reason == "asked for"
    monkeypatch.setenv("TRANSNORMER_BACKEND", "trition")
    with pytest.raises(ConfigError, match="did you mean 'triton'"):
        explain("norm_attention", "cpu")


def test_unknown_op_suggests_the_nearest():
    with pytest.raises(ConfigError, match="norm_attention"):
        explain("norm_atention")


@pytest.mark.parametrize("op", ["norm_attention", "diag_attention"])
def test_large_float32_tiles_are_left_to_pytorch(op: str) -> None:
    """Their products would be unrolled: minutes to compile, kilobytes of spilled registers a thread."""
    pytest.importorskip("triton", reason="triton is not installed")
    for size, dtype, backend in (
        (64, torch.float32, "torch"),
        (32, torch.float32, "triton"),
        (64, torch.bfloat16, "triton"),
    ):
        x = torch.empty(1, 8, 1, size, dtype=dtype)
        choice = explain(op, "cuda", q=x, k=x, v=x)
        assert choice.backend == backend, choice
    x = torch.empty(1, 8, 1, 64)
    with torch.autocast("cpu", torch.bfloat16):
        assert explain(op, "cuda", q=x, k=x, v=x).backend == "triton"
