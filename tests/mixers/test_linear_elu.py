"""1+elu linear attention against its n×n formula, written here from Katharopoulos et al. (2020), equation 4.

Covers both directions, padding, the epsilon of the denominator and leaving it out; projections are the mixer's.
"""

from __future__ import annotations

import pytest
import torch

from transnormer.mixers.registry import build_mixer


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 40, 130])
@pytest.mark.parametrize("scaling", [True, False])
def test_equals_the_quadratic_formula(causal, length, scaling):
    torch.manual_seed(0)
    mixer = build_mixer("linear_elu", hidden_size=24, num_heads=3, causal=causal, max_length=256, scaling=scaling)
    mixer = mixer.double()
    x = torch.randn(2, length, 24, dtype=torch.float64)
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[1, (length + 1) // 2 :] = False

    q, k, v = (p(x).reshape(2, length, 3, 8).permute(0, 2, 1, 3) for p in (mixer.q_proj, mixer.k_proj, mixer.v_proj))
    similarity = torch.where(q > 0, q + 1, q.exp()) @ torch.where(k > 0, k + 1, k.exp()).transpose(-1, -2)
    similarity = similarity * mask[:, None, None, :]
    if causal:
        similarity = similarity * torch.ones(length, length).tril()
    weights = similarity / (similarity.sum(-1, keepdim=True) + 1e-6) if scaling else similarity
    expected = mixer.o_proj((weights @ v).permute(0, 2, 1, 3).reshape(2, length, 24))

    torch.testing.assert_close(mixer(x, mask)[mask], expected[mask], atol=1e-12, rtol=1e-12)
