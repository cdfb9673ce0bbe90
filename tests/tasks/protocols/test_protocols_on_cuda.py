"""The protocols on a GPU, where kernels read the segments: the losses of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from transnormer.data.documents import Documents
from transnormer.models.heads import TransNormerForCausalLM
from transnormer.models.presets import preset
from transnormer.tasks.protocols.carried import CarriedState
from transnormer.tasks.protocols.windows import SlidingWindows

pytestmark = pytest.mark.gpu

PROTOCOLS = [
    CarriedState(Documents([700, 1500, 2200]), segment=300),  # across the blocks of 64
    CarriedState(Documents(), segment=1024),
    SlidingWindows(512, 128),
]


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=["documents", "stream", "sliding"])
@pytest.mark.parametrize("method", ["t2", "t1", "linear_elu"])
@torch.no_grad()
def test_losses_are_those_of_the_cpu(method, protocol, stream_of):
    torch.manual_seed(0)
    config = preset(f"{method}-tiny", vocab_size=11, num_hidden_layers=4)
    model, stream = TransNormerForCausalLM(config).eval(), stream_of(3000)
    loss, targets, _ = protocol.sums(model, stream, torch.device("cpu"), 4096).tolist()
    model.cuda()
    exact = protocol.sums(model, stream, torch.device("cuda"), 4096).tolist()
    with torch.autocast("cuda", torch.bfloat16):
        rounded = protocol.sums(model, stream, torch.device("cuda"), 4096).tolist()
    assert exact[1] == rounded[1] == targets == len(stream) - 1
    assert exact[0] == pytest.approx(loss, rel=1e-3)  # matrix products in TF32
    assert rounded[0] == pytest.approx(loss, rel=1e-2)
    assert np.isfinite(rounded[0])
