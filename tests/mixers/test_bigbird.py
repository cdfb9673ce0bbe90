"""BigBird against transformers' BigBirdBlockSparseAttention in training mode, and a brute force over all pairs.

The oracle covers, in float64: block-sparse attention, outputs and gradients, with its own seeded plan (our
`skyformer_compat`, all kinds of lengths it tells apart, duplicates counted twice) and with our plan put in its place,
also with padding in the last block. It does not cover rows of different length in one batch, for which it keeps the
last block of the longest: a brute force does, with short rows dense and long rows sparse.
"""

from __future__ import annotations

import pytest
import torch

from transnormer.errors import ConfigError
from transnormer.mixers.components.bigbird_plan import random_plan
from transnormer.mixers.registry import build_mixer

big_bird = pytest.importorskip("transformers.models.big_bird.modeling_big_bird", reason="the oracle is transformers'")

HIDDEN, HEADS = 8, 2


def ours(max_length: int = 256, **options):
    torch.manual_seed(0)
    options = {"block_size": 4, "num_random_blocks": 2, "seed": 3, **options}
    mixer = build_mixer("bigbird", hidden_size=HIDDEN, num_heads=HEADS, causal=False, max_length=max_length, **options)
    return mixer.double().eval()


def theirs(mixer):
    """The oracle with the weights of `mixer`, as a function of x and mask; it has no output projection."""
    config = big_bird.BigBirdConfig(
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        block_size=mixer.block_size,
        num_random_blocks=mixer.num_random_blocks,
        max_position_embeddings=mixer.max_length,
        attention_probs_dropout_prob=0.0,
    )
    oracle = big_bird.BigBirdBlockSparseAttention(config, seed=mixer.seed).double().train()
    for name in ("query", "key", "value"):
        getattr(oracle, name).load_state_dict(getattr(mixer, f"{name[0]}_proj").state_dict())
    with torch.no_grad():
        mixer.o_proj.weight.copy_(torch.eye(HIDDEN))

    def attend(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        blocked, band, rows, columns = big_bird.BigBirdModel.create_masks_for_block_sparse_attn(
            mask.double(), mixer.block_size
        )
        return oracle(x, band, rows, columns, blocked, blocked)[0]

    return oracle, attend


def tokens(batch: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(batch, length, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2


@pytest.mark.parametrize(
    ("length", "block_size", "num_random_blocks", "max_length"),
    [
        (40, 4, 2, 256),  # one block more than dense
        (96, 4, 1, 256),
        (96, 4, 3, 96),
        (1024, 64, 3, 1024),  # the tabulated plans
        (1024, 64, 3, 4096),
        (2048, 64, 3, 2048),
        (3072, 64, 3, 4096),
    ],
)
def test_skyformer_compat_equals_transformers_with_its_own_plan(length, block_size, num_random_blocks, max_length):
    mixer = ours(max_length, block_size=block_size, num_random_blocks=num_random_blocks, skyformer_compat=True)
    _, attend = theirs(mixer)
    x = tokens(1, length)
    mask = torch.ones(1, length, dtype=torch.bool)
    torch.testing.assert_close(mixer(x), attend(x, mask), atol=1e-12, rtol=0)
    mask[:, length - 2 * block_size - 1 :] = False
    mine = mixer(x, mask)
    torch.testing.assert_close(mine[mask], attend(x, mask)[mask], atol=1e-12, rtol=0)


@pytest.mark.parametrize("length", [37, 38, 40, 61, 96])
@pytest.mark.parametrize("num_random_blocks", [1, 2])
def test_equals_transformers_with_our_plan_in_place_of_its_own(length, num_random_blocks):
    mixer = ours(num_random_blocks=num_random_blocks)
    oracle, attend = theirs(mixer)
    total = -(-length // 4)
    plan = mixer.plan(torch.tensor([total]), total)[0, :, 1:-1]
    oracle._bigbird_block_rand_mask_with_head = lambda **_: list(plan.numpy())
    filled, mask = total * 4, torch.arange(total * 4) < length
    weights = tokens(2, length, seed=3)
    grads = []
    for function, projections in (
        (mixer, (mixer.q_proj, mixer.k_proj, mixer.v_proj)),
        (
            lambda x: attend(torch.nn.functional.pad(x, (0, 0, 0, filled - length)), mask.expand(2, -1))[:, :length],
            (oracle.query, oracle.key, oracle.value),
        ),
    ):
        x = tokens(2, length).requires_grad_()
        y = function(x)
        (y * weights).sum().backward()
        grads.append([y.detach(), x.grad, *(projection.weight.grad for projection in projections)])
    for mine, expected in zip(*grads, strict=True):
        torch.testing.assert_close(mine, expected, atol=1e-11, rtol=0)


def brute_force(mixer, x: torch.Tensor) -> torch.Tensor:
    """One row [n, hidden] without padding, with an explicit n×n table of what is visible."""
    length, size = x.shape[0], mixer.block_size
    total = -(-length // size)
    blocks = torch.ones(HEADS, total, total, dtype=torch.bool)
    if total > 5 + 2 * mixer.num_random_blocks:
        plan = mixer.plan(torch.tensor([total]), total)[0]
        for h in range(HEADS):
            for i in range(1, total - 1):
                seen = {0, i - 1, i, i + 1, total - 1, *plan[h, i].tolist()}
                blocks[h, i] = torch.tensor([j in seen for j in range(total)])
    visible = blocks.repeat_interleave(size, 1).repeat_interleave(size, 2)[:, :length, :length]
    q, k, v = (projection(x).reshape(length, HEADS, -1) for projection in (mixer.q_proj, mixer.k_proj, mixer.v_proj))
    weights = (torch.einsum("thd,shd->hts", q, k) / q.shape[-1] ** 0.5).exp() * visible
    return mixer.o_proj(torch.einsum("hts,shd->thd", weights / weights.sum(-1, keepdim=True), v).flatten(1))


@pytest.mark.parametrize("num_random_blocks", [0, 1, 2])
def test_each_row_of_a_padded_batch_equals_brute_force_on_its_own(num_random_blocks):
    mixer = ours(num_random_blocks=num_random_blocks)
    dense = mixer.dense_length
    lengths = [101, 100, 77, dense + 2, dense + 1, dense, dense - 1, 4, 1]
    x, padded = tokens(len(lengths), 103), tokens(len(lengths), 103, seed=2) * 10
    mask = torch.arange(103) < torch.tensor(lengths)[:, None]
    y = mixer(torch.where(mask[..., None], x, padded), mask)
    assert y.isfinite().all()
    for row, length in enumerate(lengths):
        expected = brute_force(mixer, x[row, :length])
        torch.testing.assert_close(y[row, :length], expected, atol=1e-12, rtol=0)
        torch.testing.assert_close(mixer(x[row : row + 1, :length])[0], expected, atol=1e-12, rtol=0)


def test_sparse_differs_from_dense_and_between_seeds():
    x = tokens(1, 100)
    y = ours()(x)
    assert not torch.allclose(y, ours(block_size=64)(x))
    assert not torch.allclose(y, ours(seed=4)(x))
    assert torch.equal(y, ours().train()(x))


def test_gradients_of_the_sparse_form_are_those_of_finite_differences():
    mixer = ours(block_size=2, num_random_blocks=1)
    mask = torch.arange(19) < torch.tensor([19, 16, 11])[:, None]
    x = tokens(3, 19).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: mixer(x, mask) * mask[..., None], (x,), fast_mode=True)


@pytest.mark.parametrize("num_random", [1, 3])
@pytest.mark.parametrize("blocks", [12, 13, 40])
def test_random_blocks_are_new_distinct_and_independent_of_padding(blocks, num_random):
    plan = random_plan(torch.tensor([blocks]), blocks, 5, num_random, seed=1)[0]
    for head in range(5):
        for i in range(1, blocks - 1):
            drawn = plan[head, i].tolist()
            assert len(set(drawn)) == num_random
            assert not set(drawn) & {0, i - 1, i, i + 1, blocks - 1}
            assert all(0 < block < blocks for block in drawn)
    longer = random_plan(torch.tensor([blocks, 50]), 50, 5, num_random, seed=1)
    assert torch.equal(longer[0, :, 1 : blocks - 1], plan[:, 1:-1])
    assert not torch.equal(plan[0], plan[1])


def test_every_block_that_may_be_drawn_is_drawn_equally_often():
    plan = random_plan(torch.tensor([13]), 13, 3000, 3, seed=1)[0]
    for i in (1, 5, 11):
        counts = plan[:, i].flatten().bincount(minlength=13)
        free = [j for j in range(1, 12) if abs(i - j) > 1]
        assert counts.sum() == counts[free].sum()
        assert (counts[free] - 9000 / len(free)).abs().max() < 5 * (9000 / len(free)) ** 0.5


def test_a_row_without_real_tokens_is_finite():
    mask = torch.ones(2, 70, dtype=torch.bool)
    mask[1] = False
    x = tokens(2, 70).requires_grad_()
    y = ours()(x, mask)
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"block_size": 0}, "block_size"), ({"num_random_blocks": -1}, "num_random_blocks"), ({"seed": -1}, "seed")],
)
def test_bad_options_are_errors_when_built(options, message):
    with pytest.raises(ConfigError, match=message):
        ours(**options)
