"""Every method can be compiled: training on a GPU records its step as one CUDA graph, without a break."""

from __future__ import annotations

import pytest
import torch

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
