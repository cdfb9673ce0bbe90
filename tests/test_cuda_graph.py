"""Recording work on a GPU as one graph."""

from __future__ import annotations

import gc

import pytest
import torch

from transnormer.cuda_graph import capture


@pytest.mark.gpu
def test_garbage_of_another_stream_is_no_harm():
    """What only the garbage collector can free holds on to where gradients used to be added up."""
    weight = torch.ones(4, device="cuda", requires_grad=True)
    gc.disable()
    try:
        cycle = [weight * 2]
        cycle.append(cycle)
        del cycle

        def step():
            weight.grad = None
            (weight * 3).sum().backward()
            return weight.grad

        replay = capture(step)
    finally:
        gc.enable()
    assert replay().tolist() == [3.0] * 4
