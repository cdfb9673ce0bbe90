"""Dropout of attention weights inside DiagAttention's kernel: the formula of dropout, and a mask that is random."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from transnormer.ops import diag_attention

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
here = pytest.mark.gpu if not INTERPRETED else pytest.mark.usefixtures("poisoned_empty")

BATCH, HEADS, BLOCK = 2, 2, 16


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def kept_weights(length: int, p: float, causal: bool) -> Tensor:
    """[B, H, T, BLOCK]: with equal scores the output for one-hot values is the row of weights itself."""
    q = torch.zeros(BATCH, length, HEADS, BLOCK, device=DEVICE)
    v = torch.eye(BLOCK, device=DEVICE).repeat(length // BLOCK, 1)[None, :, None].expand_as(q).contiguous()
    out = diag_attention(q, q, v, causal=causal, block_size=BLOCK, dropout_p=p, backend="triton")
    return out.transpose(1, 2)


@here
@pytest.mark.parametrize("kind", ["softmax", "rela"])
@pytest.mark.parametrize("causal", [True, False])
def test_outputs_and_gradients_are_those_of_dropped_weights(kind: str, causal: bool) -> None:
    length, p = 48, 0.4
    torch.manual_seed(3)
    kept = (kept_weights(length, p, causal=False) > 0).double()
    q, k, v, g = (random(seed, BATCH, length, HEADS, BLOCK) for seed in range(4))
    inputs = [x.requires_grad_() for x in (q, k, v)]
    torch.manual_seed(3)
    out = diag_attention(*inputs, causal=causal, block_size=BLOCK, kind=kind, dropout_p=p, backend="triton")
    ours = (out, *torch.autograd.grad(out, inputs, g))

    exact = [x.detach().double().requires_grad_() for x in inputs]
    q, k, v = (x.transpose(1, 2).unflatten(2, (-1, BLOCK)) for x in exact)
    scores = q @ k.mT * BLOCK**-0.5
    hidden = torch.ones(BLOCK, BLOCK, dtype=torch.bool, device=DEVICE).triu(1) & causal
    if kind == "softmax":
        weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
    else:
        weights = scores.relu().masked_fill(hidden, 0)
    dropped = weights * kept.unflatten(2, (-1, BLOCK)) / (1 - p)
    expected = (dropped @ v).flatten(2, 3).transpose(1, 2)
    for found, right in zip(ours, (expected, *torch.autograd.grad(expected, exact, g.double())), strict=True):
        torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=1e-4)


@here
def test_the_mask_is_random_and_the_seed_decides_it() -> None:
    p, length = 0.25, 256
    torch.manual_seed(0)
    first = kept_weights(length, p, causal=False)
    second = kept_weights(length, p, causal=False)
    torch.manual_seed(0)
    assert torch.equal(kept_weights(length, p, causal=False), first)
    masks = [(weights > 0).float() for weights in (first, second)]
    assert not torch.equal(*masks)
    assert sorted(first.unique().tolist()) == pytest.approx([0.0, 1 / BLOCK / (1 - p)])
    number = masks[0].numel()
    for mask in masks:
        assert abs(mask.mean().item() - (1 - p)) < 4 * (p * (1 - p) / number) ** 0.5
    # Batches, heads, blocks, neighbours and calls know nothing of each other.
    a, b = masks
    pairs = [(a, b), (a[0], a[1]), (a[:, 0], a[:, 1]), (a[:, :, :-16], a[:, :, 16:]), (a[..., 1:], a[..., :-1])]
    for x, y in [*pairs, (a[:, :, 1:], a[:, :, :-1])]:
        correlation = torch.corrcoef(torch.stack([x.flatten(), y.flatten()]))[0, 1]
        assert abs(correlation.item()) < 4 / x.numel() ** 0.5
