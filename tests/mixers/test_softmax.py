"""Vanilla attention of padded batches: each sequence as if it were alone, and nothing as large as the scores."""

from __future__ import annotations

import pytest
import torch

from transnormer.mixers.registry import build_mixer

LENGTHS = (40, 1, 17)


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-14), (torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)],
)
def test_a_padded_text_is_read_as_if_it_were_alone(dtype: torch.dtype, tolerance: float, device: str) -> None:
    """Whatever stands in the padding; keys there may be as large as they like."""
    torch.manual_seed(0)
    mixer = build_mixer("softmax", hidden_size=32, num_heads=2, causal=False, max_length=64).to(device, dtype)
    x = torch.randn(len(LENGTHS), max(LENGTHS), 32).to(device, dtype)
    mask = torch.arange(max(LENGTHS), device=device) < torch.tensor(LENGTHS, device=device)[:, None]
    x[~mask] *= 1e4 if dtype == torch.float16 else 1e9
    y = mixer(x, mask=mask)
    assert y.isfinite().all()
    for row, length in enumerate(LENGTHS):
        alone = mixer(x[row : row + 1, :length])
        torch.testing.assert_close(y[row : row + 1, :length], alone, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_text_without_tokens_has_finite_gradients(dtype: torch.dtype, device: str) -> None:
    mixer = build_mixer("softmax", hidden_size=32, num_heads=2, causal=False, max_length=64).to(device, dtype)
    x = torch.randn(2, 20, 32, dtype=dtype, device=device, requires_grad=True)
    mask = torch.arange(20, device=device) < torch.tensor([20, 0], device=device)[:, None]
    y = mixer(x, mask=mask)
    y.float().square().sum().backward()
    assert y.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in mixer.parameters())


def test_padding_takes_no_memory_of_the_square_of_the_length() -> None:
    length = 300
    mixer = build_mixer("softmax", hidden_size=16, num_heads=2, causal=False, max_length=length)
    mask = torch.arange(length) < torch.tensor([length, 7])[:, None]
    sizes = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        mixer(torch.randn(2, length, 16), mask=mask)
    assert sizes
    assert max(sizes) < length**2
