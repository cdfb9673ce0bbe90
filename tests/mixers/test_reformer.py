"""Reformer against transformers' LSHSelfAttention and, where that is not causal, against its definition.

LSHSelfAttention covers, in float64: the bidirectional form, dense (short) and hashed, one to three rounds, one hash and
products of hashes, with padding inside the last chunk, outputs and gradients; the default number of buckets; the causal
form where all tokens share one bucket. It does not cover the causal form with several buckets, because it leaks the
future there, which one test shows: that is compared with a brute force over all pairs of tokens.
"""

from __future__ import annotations

import pytest
import torch

from transnormer.errors import ConfigError
from transnormer.mixers.components.lsh import chunks_by_bucket, default_num_buckets, hash_buckets
from transnormer.mixers.registry import build_mixer

reformer = pytest.importorskip("transformers.models.reformer.modeling_reformer", reason="the oracle is transformers'")

HIDDEN, HEADS, HEAD = 12, 3, 4
SEED = 5
# The oracle's own error in float64 where a token sees only itself, at a score of -1e5, is 5e-12.
TOLERANCE = 1e-11


def ours(causal: bool = False, chunk_size: int = 8, **options):
    torch.manual_seed(0)
    mixer = build_mixer(
        "reformer",
        hidden_size=HIDDEN,
        num_heads=HEADS,
        causal=causal,
        max_length=256,
        chunk_size=chunk_size,
        **{"num_buckets": 8, **options},
    )
    return mixer.double().eval()


def theirs(mixer, causal: bool = False):
    """LSHSelfAttention with the weights and, by its seed, the rotations of `mixer`, which gets them here."""
    factors = mixer.bucket_factors
    config = reformer.ReformerConfig(
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        attention_head_size=HEAD,
        attn_layers=["lsh"],
        lsh_attn_chunk_length=mixer.chunk_size,
        lsh_num_chunks_before=1,
        lsh_num_chunks_after=0,
        lsh_attention_probs_dropout_prob=0.0,
        num_buckets=factors[0] if len(factors) == 1 else factors,
        num_hashes=mixer.num_hashes,
        hash_seed=SEED,
        is_decoder=causal,
    )
    oracle = reformer.LSHSelfAttention(config).double().eval()
    torch.manual_seed(SEED)
    with torch.no_grad():
        mixer.rotations.copy_(torch.randn(mixer.rotations.shape, dtype=torch.float64))
        oracle.query_key.weight.copy_(mixer.qk_proj.weight)
        oracle.value.weight.copy_(mixer.v_proj.weight)
        mixer.o_proj.weight.copy_(torch.eye(HIDDEN))
    return oracle


def tokens(batch: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(batch, length, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2


@pytest.mark.parametrize("num_hashes", [1, 2, 3])
@pytest.mark.parametrize("num_buckets", [2, 8, [4, 6]])
@pytest.mark.parametrize("length", [1, 7, 8, 16, 24, 64, 160])
def test_bidirectional_equals_transformers(num_hashes, num_buckets, length):
    mixer = ours(num_hashes=num_hashes, num_buckets=num_buckets)
    oracle = theirs(mixer)
    x = tokens(2, length)
    torch.testing.assert_close(mixer(x), oracle(x).hidden_states, atol=TOLERANCE, rtol=0)


def test_gradients_equal_transformers():
    mixer = ours(num_hashes=2)
    oracle = theirs(mixer)
    weights = tokens(2, 64, seed=3)
    grads = []
    for module, parameters in (
        (mixer, (mixer.qk_proj.weight, mixer.v_proj.weight)),
        (lambda x: oracle(x).hidden_states, (oracle.query_key.weight, oracle.value.weight)),
    ):
        x = tokens(2, 64).requires_grad_()
        grads.append(torch.autograd.grad((module(x) * weights).sum(), (x, *parameters)))
    for mine, expected in zip(*grads, strict=True):
        torch.testing.assert_close(mine, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("length", [1, 5, 8, 9, 13, 40, 61])
def test_padding_equals_transformers_with_the_last_chunk_filled_up(length):
    mixer = ours(num_hashes=2)
    oracle = theirs(mixer)
    x = tokens(1, length)
    filled = length if length <= 8 else -(-length // 8) * 8
    mask = torch.arange(filled)[None] < length
    padded = torch.cat([x, tokens(1, filled - length, seed=2)], dim=1)
    expected = oracle(padded, attention_mask=mask).hidden_states[:, :length]
    torch.testing.assert_close(mixer(x), expected, atol=TOLERANCE, rtol=0)
    more = torch.cat([padded, tokens(1, 30, seed=4)], dim=1)
    mine = mixer(more, torch.arange(more.shape[1])[None] < length)[:, :length]
    torch.testing.assert_close(mine, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("chunk_size", [2, 8, 64])
@pytest.mark.parametrize("length", [64, 100, 256, 1024, 4096, 65_536])
def test_default_number_of_buckets_is_that_of_transformers(chunk_size, length):
    config = reformer.ReformerConfig(
        attn_layers=["lsh"], lsh_attn_chunk_length=chunk_size, max_position_embeddings=length
    )
    oracle = reformer.LSHSelfAttention(config)
    oracle._set_num_buckets(length)
    expected = oracle.num_buckets if isinstance(oracle.num_buckets, list) else [oracle.num_buckets]
    assert default_num_buckets(length, chunk_size) == expected


@pytest.mark.parametrize("length", [1, 5, 8, 16, 24, 64])
@pytest.mark.parametrize("num_hashes", [1, 2])
def test_causal_equals_transformers_where_all_tokens_share_a_bucket(length, num_hashes):
    mixer = ours(causal=True, num_hashes=num_hashes)
    oracle = theirs(mixer, causal=True)
    with torch.no_grad():
        mixer.rotations.zero_()
    oracle._hash_vectors = lambda vectors, rounds, *_: (
        torch.arange(rounds).repeat_interleave(vectors.shape[2]).expand(*vectors.shape[:2], -1)
    )
    x = tokens(2, length)
    torch.testing.assert_close(mixer(x), oracle(x).hidden_states, atol=TOLERANCE, rtol=0)


def causal_brute_force(mixer, x: torch.Tensor) -> torch.Tensor:
    """The causal form from its definition, one query at a time."""
    batch, length = x.shape[:2]
    heads = mixer.rotations.shape[0]
    queries = (x @ mixer.qk_proj.weight.T).reshape(batch, length, heads, -1)
    values = (x @ mixer.v_proj.weight.T).reshape(batch, length, heads, -1)
    out = torch.zeros_like(values)
    for b in range(batch):
        for h in range(heads):
            rotated = torch.einsum("td,drs->trs", queries[b, :, h], mixer.rotations[h])
            buckets = torch.cat([rotated, -rotated], dim=-1).argmax(-1)  # [T, R]
            rms = queries[b, :, h].square().mean(-1, keepdim=True).add(1e-6).sqrt()
            keys = queries[b, :, h] / rms / queries.shape[-1] ** 0.5
            for t in range(length):
                sums, weighted = [], []
                for r in range(mixer.num_hashes):
                    bucket = [s for s in range(t + 1) if buckets[s, r] == buckets[t, r]]
                    chunk = (len(bucket) - 1) // mixer.chunk_size
                    others = bucket[max(chunk - 1, 0) * mixer.chunk_size : -1]
                    if others:
                        weights = (keys[others] @ queries[b, t, h]).exp()
                        sums.append(weights.sum())
                        weighted.append(weights @ values[b, others, h])
                out[b, t, h] = sum(weighted) / sum(sums) if sums else values[b, t, h]
    return mixer.o_proj(out.flatten(2))


@pytest.mark.parametrize(("chunk_size", "num_buckets"), [(1, 2), (2, 4), (4, 8), (8, 2), (64, 4)])
@pytest.mark.parametrize("num_hashes", [1, 2, 3])
def test_causal_equals_brute_force(chunk_size, num_buckets, num_hashes):
    mixer = ours(causal=True, chunk_size=chunk_size, num_hashes=num_hashes, num_buckets=num_buckets)
    x = tokens(1, 45)
    torch.testing.assert_close(mixer(x), causal_brute_force(mixer, x), atol=1e-12, rtol=0)


def test_the_causal_chunks_of_the_paper_leak():
    """Why there is only the other causal form: here a later token changes what earlier ones give, by far."""
    mixer = ours(num_hashes=1)
    oracle = theirs(mixer, causal=True)
    x = tokens(1, 64)
    leaks = []
    for position in range(1, 64):
        changed = x.clone()
        changed[:, position] = -changed[:, position]
        difference = (oracle(changed).hidden_states - oracle(x).hidden_states)[:, :position]
        leaks.append(difference.abs().max().item())
    assert max(leaks) > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("chunk_size", [2, 4, 16])
def test_causal_bit_for_bit_whatever_follows(chunk_size, dtype):
    mixer = ours(causal=True, chunk_size=chunk_size, num_buckets=[4, 4]).to(dtype)
    x = tokens(2, 200).to(dtype)
    before = mixer(x)
    for seed, position in enumerate((1, 2, 17, 63, 64, 99, 150, 198)):
        after = mixer(torch.cat([x[:, :position], 5 * tokens(2, 200 - position, seed=seed).to(dtype)], dim=1))
        assert torch.equal(after[:, :position], before[:, :position])


@pytest.mark.parametrize("chunk_size", [1, 3, 8])
@pytest.mark.parametrize("num_buckets", [2, 5, 64])
def test_layout_holds_each_token_once_and_grows_only_at_its_end(chunk_size, num_buckets):
    length, prefix = 70, 41
    buckets = torch.randint(num_buckets, (2, 3, 2, length), generator=torch.Generator().manual_seed(2))
    buckets[0, 0] = 0
    buckets[0, 1, :, :num_buckets] = torch.arange(num_buckets)[:length]
    layout = chunks_by_bucket(buckets, num_buckets, chunk_size)
    part = chunks_by_bucket(buckets[..., :prefix], num_buckets, chunk_size)
    assert torch.equal(layout.index[..., :prefix], part.index)
    empty = layout.tokens.shape[3] - 1
    # No more slots than the tokens fill in the worst case: linear in the length.
    assert layout.tokens.shape[3] <= min(num_buckets, length) + length // chunk_size + 1
    for tokens_, previous, bucket in zip(
        layout.tokens.flatten(0, 2), layout.previous.flatten(0, 2), buckets.flatten(0, 2), strict=True
    ):
        assert sorted(tokens_[tokens_ >= 0].tolist()) == list(range(length))
        assert (tokens_[empty] == -1).all()
        chunks = [[token for token in chunk if token >= 0] for chunk in tokens_.tolist()]
        for b in bucket.unique():
            mine = [c for c in range(empty) if chunks[c] and bucket[chunks[c][0]] == b]
            chain, at = [], mine[-1]
            while at != empty:
                chain.insert(0, at)
                at = previous[at].item()
            assert chain == mine
            assert [t for c in mine for t in chunks[c]] == (bucket == b).nonzero().flatten().tolist()
            assert all(len(chunks[c]) == chunk_size for c in mine[:-1])


def test_buckets_are_the_same_in_half_precision_contexts():
    x, rotations = tokens(2, 50).float().reshape(2, 50, HEADS, HEAD), torch.randn(HEADS, HEAD, 2, 8)
    expected = hash_buckets(x, rotations, [16])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(hash_buckets(x, rotations, [16]), expected)


def test_causal_training_and_evaluation_use_the_rotations_they_promise():
    x = tokens(1, 60)
    fixed, redrawn = ours(causal=True, redraw=False), ours(causal=True)
    assert torch.equal(fixed.train()(x), fixed.eval()(x))
    assert not torch.equal(redrawn.train()(x), redrawn(x))
    assert torch.equal(redrawn.eval()(x), redrawn(x))
    state = redrawn.init_state(1)
    redrawn.train()
    first, state = redrawn(x[:, :30], None, state)
    second, _ = redrawn(x[:, 30:], None, state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), redrawn.eval()(x), atol=1e-12, rtol=0)


def test_the_seed_decides_the_rotations():
    assert torch.equal(ours(seed=3).rotations, ours(seed=3).rotations)
    assert not torch.equal(ours(seed=3).rotations, ours(seed=4).rotations)


def test_a_reset_draws_rotations_and_leaves_the_projections_to_themselves():
    mixer = ours()
    before = {name: tensor.clone() for name, tensor in mixer.state_dict().items()}
    mixer.reset_parameters()
    changed = [name for name, tensor in mixer.state_dict().items() if not torch.equal(tensor, before[name])]
    assert changed == ["rotations"]


def test_skyformer_compat_hashes_anew_in_evaluation():
    mixer = ours(skyformer_compat=True)
    assert not torch.equal(mixer(tokens(1, 60)), mixer(tokens(1, 60)))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("hashed", "bound"), [(False, 0.01), (True, 0.1)])
def test_bfloat16_is_near_float32(causal, hashed, bound):
    """Up to rounding in one bucket; with several, rounding sends some tokens to another one."""
    mixer = ours(causal=causal).bfloat16()
    with torch.no_grad():
        mixer.rotations.mul_(hashed)
    x = tokens(2, 64).bfloat16()
    rounded = mixer(x)
    exact = mixer.float()(x.float())
    assert rounded.dtype == torch.bfloat16
    assert (rounded.float() - exact).abs().mean() < bound * exact.abs().mean()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_hashes": 0}, "num_hashes"),
        ({"chunk_size": 0}, "chunk_size"),
        ({"num_buckets": 7}, "num_buckets"),
        ({"num_buckets": [4, 0]}, "num_buckets"),
        ({"num_buckets": []}, "num_buckets"),
        ({"causal": True, "skyformer_compat": True}, "skyformer_compat"),
    ],
)
def test_bad_options_are_errors_when_built(options, message):
    with pytest.raises(ConfigError, match=message):
        ours(**options)
