"""float16 in NormAttention's kernels: values with a mean of two sum to millions, and its range ends at 65,504."""

from __future__ import annotations

import os

import pytest
import torch

from transnormer.ops import norm_attention, norm_decode_step, rotated_attention
from transnormer.ops.norm_attention.reference import norm_attention_reference

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
pytestmark = [] if INTERPRETED else [pytest.mark.gpu]

LENGTH, SIZE = (512, 32) if INTERPRETED else (32_768, 64)


def values_of_mean_two(*shape: int) -> torch.Tensor:
    return (2 + torch.randn(shape, generator=torch.Generator().manual_seed(0))).to(DEVICE, torch.float16)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("autocast", [True, False])
def test_sums_stay_finite(causal, autocast):
    q, k, v = 8 * values_of_mean_two(3, 1, LENGTH, 1, SIZE)
    inputs = [x.float() if autocast else x for x in (q, k, v)]
    backend = "triton" if INTERPRETED else None  # on a GPU wide float32 heads are PyTorch's
    with torch.autocast(DEVICE, torch.float16, enabled=autocast):
        out, state = norm_attention(*inputs, causal=causal, return_state=True, backend=backend)
    assert out.dtype == state.dtype == torch.float32
    exact, exact_state = norm_attention_reference(
        *(x[:, :512].double() for x in (q, k, v)), causal=True, feature_map="1+elu"
    )
    assert out.isfinite().all()
    assert out.max() > 65_504
    if causal:
        torch.testing.assert_close(out[:, :512].double(), exact, rtol=1e-3, atol=0)
    elif LENGTH == 512:
        torch.testing.assert_close(state.double(), exact_state, rtol=1e-3, atol=0)


def test_packed_qkv_is_rotated_in_float32():
    qkv = 8 * values_of_mean_two(1, 128, 3, 1, SIZE)
    backend = "triton" if INTERPRETED else None
    frequencies = torch.ones(SIZE // 2, device=DEVICE)
    positions = torch.arange(128, device=DEVICE)
    attended = rotated_attention(qkv, positions, frequencies, kind="norm", causal=True, backend=backend)
    expected = rotated_attention(qkv.double(), positions, frequencies.double(), kind="norm", causal=True)
    assert attended.out.dtype == torch.float32
    torch.testing.assert_close(attended.out.double(), expected.out, rtol=1e-3, atol=20)


def test_a_step_stays_finite():
    q, k, v = values_of_mean_two(3, 1, 1, 1, SIZE)
    memory = torch.full((1, 1, SIZE, SIZE), 1e6, device=DEVICE)
    out = norm_decode_step(q, k, v, memory, positions=torch.zeros(1, dtype=torch.long, device=DEVICE), backend="triton")
    assert out.dtype == torch.float32
    assert out.isfinite().all()
