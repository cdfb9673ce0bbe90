"""Positions against their formulas, and angles that keep their precision whatever the model's is."""

from __future__ import annotations

import copy
import math

import pytest
import torch

import transnormer as tn
from transnormer.mixers.components.positions import Rotation, sinusoidal_embedding

LENGTH = 8192


def lrpe() -> Rotation:
    torch.manual_seed(0)
    return Rotation("lrpe", 32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("convert", ["to", "type", "by name", "inside a model"])
def test_half_precision_leaves_angles_and_reflection_as_they_are(dtype, convert):
    rotation, before = lrpe(), lrpe()
    if convert == "by name":
        rotation = rotation.bfloat16() if dtype == torch.bfloat16 else rotation.half()
    elif convert == "inside a model":
        rotation = torch.nn.Sequential(rotation).to(dtype)[0]
    else:
        rotation = getattr(rotation, convert)(dtype)
    assert torch.equal(rotation.theta, before.theta)
    assert torch.equal(rotation.reflection, before.reflection)


def test_a_converted_rotation_is_as_exact_as_its_inputs():
    exact, rotation = lrpe().double(), lrpe().bfloat16()
    q, k = torch.randn(2, 1, LENGTH, 1, 32, dtype=torch.bfloat16)
    positions = torch.arange(LENGTH)
    for ours, theirs in zip(
        rotation.rotate(q, k, positions), exact.rotate(q.double(), k.double(), positions), strict=True
    ):
        assert (ours.double() - theirs).norm() / theirs.norm() < 4e-3  # one rounding to 8 bits


def test_meta_tensors_and_float64_go_where_they_are_sent():
    assert lrpe().to("meta", torch.bfloat16).theta.device.type == "meta"
    assert lrpe().double().theta.dtype == torch.float64
    assert lrpe().double().half().theta.dtype == torch.float32


def test_a_layer_made_in_half_precision_has_float32_angles():
    torch.set_default_dtype(torch.bfloat16)
    try:
        rotation = lrpe()
    finally:
        torch.set_default_dtype(torch.float32)
    assert rotation.theta.dtype == rotation.reflection.dtype == torch.float32


def test_float64_models_compute_positions_in_float64():
    positions = torch.arange(LENGTH)
    steps = torch.arange(8, dtype=torch.float64)
    angles = positions[:, None].double() * 10_000.0 ** (-steps / 7)
    expected = torch.cat([angles.sin(), angles.cos()], dim=-1)
    torch.testing.assert_close(sinusoidal_embedding(positions, 16, torch.float64), expected, atol=1e-11, rtol=0)
    q = torch.randn(1, LENGTH, 1, 16, dtype=torch.float64)
    rotated, _ = Rotation("rope", 16).rotate(q, q, positions)
    pairs = torch.view_as_complex(q.unflatten(-1, (-1, 2)))
    turned = pairs * torch.exp(1j * positions[:, None] * 10_000.0 ** (-steps / 8)).unsqueeze(-2)
    torch.testing.assert_close(rotated, torch.view_as_real(turned).flatten(-2), atol=1e-10, rtol=0)


def test_a_converted_model_loads_what_it_saved(tmp_path):
    config = tn.preset("t2-lm", vocab_size=50, num_hidden_layers=2, hidden_size=32, num_attention_heads=2)
    model = tn.TransNormerForCausalLM(config).to(torch.bfloat16)
    copy.deepcopy(model).save_pretrained(tmp_path)
    loaded = tn.TransNormerForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name
        assert tensor.dtype == loaded.state_dict()[name].dtype
    ids = torch.arange(40)[None]
    assert torch.equal(model.eval()(ids).logits, loaded.eval()(ids).logits)


@pytest.mark.parametrize("size", [2, 3, 8, 17])
def test_sinusoids_are_those_of_the_formula(size: int) -> None:
    """fairseq's: sines, then cosines, of position / 10000^(i / (half - 1)), the last of an odd size zero."""
    half = size // 2
    table = sinusoidal_embedding(torch.tensor([[0, 1, 7, 300]]), size, torch.float32)
    assert table.shape == (1, 4, size)
    for row, position in zip(table[0].tolist(), (0, 1, 7, 300), strict=True):
        angles = [position / 10_000 ** (i / max(half - 1, 1)) for i in range(half)]
        expected = [*map(math.sin, angles), *map(math.cos, angles), *([0.0] * (size % 2))]
        assert row == pytest.approx(expected, abs=2e-5)
