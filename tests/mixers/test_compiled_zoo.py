"""Every method can be compiled: training on a GPU records its step as one CUDA graph, without a break."""

from __future__ import annotations

import pytest
import torch
import torch._inductor.config as inductor

import transnormer as tn
from transnormer.bench.settings import SETTINGS
from transnormer.bench.speed_models import FixedBatch, build_model
from transnormer.models.presets import METHODS


@pytest.mark.parametrize("method", METHODS)
def test_a_step_is_one_graph_under_autocast(method: str) -> None:
    """To the part of the compiler that reads Python; what it makes of it must give the same loss."""
    model = build_model(SETTINGS["skyformer"], method, 256).eval()  # without dropout
    batch = {name: values[:2] for name, values in FixedBatch(SETTINGS["skyformer"], 256).batch.items()}
    compiled = torch.compile(model, fullgraph=True, dynamic=False, backend="eager")
    with torch.autocast("cpu", torch.bfloat16):
        losses = []
        for call in (model, compiled):
            torch.manual_seed(0)  # some methods draw what they look at
            losses.append(call(**batch).loss)
    torch.testing.assert_close(*losses)
    torch.compiler.reset()


def test_long_short_is_scored_behind_a_concatenation_that_a_gpu_fuses(monkeypatch) -> None:
    """An evaluation has no gradients: Inductor reads the mixer's distances through the scores it joins."""
    monkeypatch.setattr(inductor, "force_pointwise_cat", True)  # a CPU would copy instead
    mixer = tn.build_mixer("long_short", hidden_size=16, num_heads=2, causal=True, max_length=160).eval()
    x = torch.randn(2, 160, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(mixer, fullgraph=True, dynamic=False)(x), mixer(x))
    torch.compiler.reset()
