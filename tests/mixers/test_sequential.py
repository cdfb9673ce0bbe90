"""Two attentions in sequence against T×T formulas written here: the second's queries come from the first's output.

There is no outside implementation of this ablation; the formulas below share no code with the mixers. Decoding and
gradients are covered by tests/contract, bad pairs by test_parallel.py.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transnormer.mixers.registry import build_mixer

WIDTH, HEADS, BLOCK, LENGTH = 24, 3, 5, 23


def block_softmax(part: nn.Module, queries: Tensor, x: Tensor, causal: bool) -> Tensor:
    steps = torch.arange(LENGTH)
    seen = steps[:, None] // BLOCK == steps // BLOCK
    if causal:
        seen = seen.tril()
    q, k, v = (
        projection(source).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for projection, source in ((part.q_proj, queries), (part.k_proj, x), (part.v_proj, x))
    )
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    return part.o_proj(out.transpose(1, 2).flatten(-2))


def normed_linear(part: nn.Module, queries: Tensor, x: Tensor, causal: bool) -> Tensor:
    """Token by token: a sum of outer products over what is visible."""
    q, k, v = 1 + F.elu(part.q_proj(queries)), 1 + F.elu(part.k_proj(x)), part.v_proj(x)
    q, k, v = (tensor.unflatten(-1, (HEADS, -1)) for tensor in (q, k, v))
    rows = []
    for t in range(LENGTH):
        stop = t + 1 if causal else LENGTH
        memory = torch.einsum("bshd,bshe->bhde", k[:, :stop], v[:, :stop])
        out = torch.einsum("bhd,bhde->bhe", q[:, t], memory).flatten(-2)
        rows.append(out / (out.square().mean(-1, keepdim=True) + 1e-6).sqrt())
    return part.o_proj(torch.stack(rows, dim=1))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("order", ["diag-norm", "norm-diag"])
def test_the_second_attention_asks_with_the_output_of_the_first(causal, order):
    first, second = order.split("-")
    options = {
        f"{part}_options": {"block_size": BLOCK}
        for part, name in (("first", first), ("second", second))
        if name == "diag"
    }
    torch.manual_seed(0)
    mixer = build_mixer(
        "sequential",
        hidden_size=WIDTH,
        num_heads=HEADS,
        causal=causal,
        max_length=64,
        first=first,
        second=second,
        **options,
    ).double()
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    formula = {"diag": block_softmax, "norm": normed_linear}
    asked = formula[first](mixer.first, x, x, causal)
    expected = formula[second](mixer.second, asked, x, causal)
    torch.testing.assert_close(mixer(x), expected, atol=1e-12, rtol=1e-12)


def test_the_order_matters_and_both_orders_decode():
    x = torch.randn(1, 12, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    outputs = []
    for first, second in (("diag", "norm"), ("norm", "diag")):
        torch.manual_seed(0)
        mixer = build_mixer(
            "sequential", hidden_size=WIDTH, num_heads=HEADS, causal=True, max_length=64, first=first, second=second
        ).double()
        state, steps = mixer.init_state(1), []
        for t in range(12):
            y, state = mixer(x[:, t : t + 1], None, state)
            steps.append(y)
        outputs.append(torch.cat(steps, dim=1))
        torch.testing.assert_close(outputs[-1], mixer(x), atol=1e-12, rtol=0)
    assert not torch.allclose(*outputs)
