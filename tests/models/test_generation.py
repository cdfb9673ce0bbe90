"""generate() on transformers' caches: equal to the parallel forward, batched, beamed, streamed, constant in memory."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache, StaticCache

import transnormer as tn
from transnormer.errors import ConfigError
from transnormer.mixers.registry import mixer_class

METHODS = ["t1", "t2", "vanilla", "linear_elu"]
PAD = 256
offloads = pytest.mark.skipif(
    torch.version.cuda is not None and not torch.cuda.is_available(),
    reason="transformers' offloading caches make a CUDA stream wherever torch was built for CUDA: no GPU here",
)


def model_of(method: str, **overrides: object) -> tn.TransNormerForCausalLM:
    torch.manual_seed(0)
    config = tn.preset(f"{method}-tiny", hidden_size=64, num_attention_heads=2, **overrides)
    return tn.TransNormerForCausalLM(config).eval()


def prompt(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 256, (batch, length), generator=torch.Generator().manual_seed(1))


def left_padded(prompts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(len(p) for p in prompts)
    ids, mask = torch.full((len(prompts), width), PAD), torch.zeros(len(prompts), width, dtype=torch.long)
    for row, tokens in enumerate(prompts):
        ids[row, width - len(tokens) :], mask[row, width - len(tokens) :] = tokens, 1
    return ids, mask


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("length", [1, 60, 64, 130])
def test_greedy_equals_the_argmax_of_the_parallel_forward(method, length):
    model = model_of(method)
    out = model.generate(prompt(2, length), max_new_tokens=80, do_sample=False, pad_token_id=PAD)
    with torch.no_grad():
        parallel = model(out).logits.argmax(-1)
    assert torch.equal(parallel[:, length - 1 : -1], out[:, length:])


@pytest.mark.parametrize("method", METHODS)
def test_a_left_padded_batch_gives_what_each_prompt_gives_alone(method):
    model = model_of(method)
    prompts = [prompt(1, n)[0] for n in (100, 63, 7)]
    ids, mask = left_padded(prompts)
    together = model.generate(ids, attention_mask=mask, max_new_tokens=70, do_sample=False, pad_token_id=PAD)
    for row, tokens in enumerate(prompts):
        alone = model.generate(tokens[None], max_new_tokens=70, do_sample=False, pad_token_id=PAD)
        assert torch.equal(together[row, ids.shape[1] :], alone[0, len(tokens) :])


@pytest.mark.parametrize("method", METHODS)
def test_beams_equal_beams_without_a_cache(method):
    model = model_of(method)
    ids, mask = left_padded([prompt(1, n)[0] for n in (70, 33)])
    arguments = {"attention_mask": mask, "max_new_tokens": 20, "num_beams": 3, "do_sample": False, "pad_token_id": PAD}
    assert torch.equal(model.generate(ids, **arguments), model.generate(ids, **arguments, use_cache=False))


@pytest.mark.parametrize("method", METHODS)
def test_sampling_is_decided_by_the_seed(method):
    model = model_of(method)

    def sample(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return model.generate(prompt(2, 20), max_new_tokens=20, do_sample=True, top_k=50, pad_token_id=PAD)

    assert torch.equal(sample(3), sample(3))
    assert not torch.equal(sample(3), sample(4))


def test_streaming_yields_every_token_in_order():
    class Collector:
        def __init__(self) -> None:
            self.tokens: list[int] = []
            self.ended = False

        def put(self, value: torch.Tensor) -> None:
            self.tokens += value.flatten().tolist()

        def end(self) -> None:
            self.ended = True

    model, collector = model_of("t2"), Collector()
    out = model.generate(prompt(1, 20), max_new_tokens=30, do_sample=False, pad_token_id=PAD, streamer=collector)
    assert collector.tokens == out[0].tolist()
    assert collector.ended


@torch.no_grad()
def require_a_constant_state(model: tn.TransNormerForCausalLM) -> None:
    """As large after 64k tokens as after 1k."""
    cache, sizes = tn.DecodeCache(model.config), []
    for total in (1024, 65_536):
        while cache.get_seq_length() < total:
            model(random_ids(1, 1024), past_key_values=cache, logits_to_keep=1)
        # The last step is a generated token: the state is the one that decoding really holds.
        model(random_ids(1, 1), past_key_values=cache)
        sizes.append(tn.state_bytes(cache))
    assert sizes[0] == sizes[1] > 0


@pytest.mark.reliability("R15")
@pytest.mark.parametrize("method", ["t1", "t2", "linear_elu"])
def test_the_state_is_as_large_after_64k_tokens_as_after_1k(method):
    require_a_constant_state(model_of(method))


@pytest.mark.reliability("R15")
@pytest.mark.parametrize("mixer", [name for name in tn.list_mixers() if mixer_class(name).traits.recurrent])
def test_so_is_the_state_of_every_recurrent_mixer(mixer):
    require_a_constant_state(layers_of(mixer, max_position_embeddings=70_000))


@pytest.mark.parametrize("mixer", ["diag", "flash", "parallel", "sequential"])
@torch.no_grad()
def test_the_state_does_not_keep_the_prompt_alive(mixer):
    """A view of the last keys would hold the memory of all of them."""
    model, sizes = layers_of(mixer), []
    for length in (100, 1000):
        cache = tn.DecodeCache(model.config)
        model(random_ids(1, length), past_key_values=cache)
        held = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
        sizes.append(sum(tensor.untyped_storage().nbytes() for tensor in held))
    assert sizes[0] == sizes[1] > 0


@pytest.mark.parametrize("method", METHODS)
def test_prefill_in_pieces_equals_prefill_at_once(method):
    model = model_of(method).double()
    ids = prompt(2, 200)
    cache = tn.DecodeCache(model.config)
    with torch.no_grad():
        pieces = [model(ids[:, a:b], past_key_values=cache).logits for a, b in ((0, 70), (70, 71), (71, 200))]
        torch.testing.assert_close(torch.cat(pieces, dim=1), model(ids).logits, atol=1e-10, rtol=0)


def test_transformers_own_dynamic_cache_works_too():
    model = model_of("t2").double()
    ids, cache = prompt(1, 100), DynamicCache(config=model.config)
    with torch.no_grad():
        pieces = [model(ids[:, a:b], past_key_values=cache).logits for a, b in ((0, 70), (70, 100))]
        torch.testing.assert_close(torch.cat(pieces, dim=1), model(ids).logits, atol=1e-10, rtol=0)
    assert cache.get_seq_length() == 100
    recurrent = model_of("linear_elu")
    with pytest.raises(ConfigError, match="DecodeCache"):
        recurrent(ids, past_key_values=DynamicCache(config=recurrent.config))


@pytest.mark.parametrize("method", ["t1", "t2", "vanilla", "llama"])
def test_a_dynamic_cache_of_no_model_becomes_one_of_this(method):
    model, ids, cache = model_of(method).double(), prompt(2, 100), DynamicCache()
    with torch.no_grad():
        pieces = [model(ids[:, a:b], past_key_values=cache).logits for a, b in ((0, 70), (70, 71), (71, 100))]
        torch.testing.assert_close(torch.cat(pieces, dim=1), model(ids).logits, atol=1e-10, rtol=0)
    assert cache.get_seq_length() == 100
    for beams in (1, 2):
        arguments = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": PAD, "num_beams": beams}
        written = model.generate(ids, **arguments, past_key_values=DynamicCache())
        assert torch.equal(written, model.generate(ids, **arguments))


@pytest.mark.parametrize("method", ["t2", "linear_elu", "vanilla"])
def test_a_dynamic_cache_by_name_is_the_default(method):
    model = model_of(method)
    arguments = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": PAD}
    named = model.generate(prompt(2, 70), **arguments, cache_implementation="dynamic")
    assert torch.equal(named, model.generate(prompt(2, 70), **arguments))


@pytest.mark.parametrize("method", ["t2", "linear_elu", "flash"])
@pytest.mark.parametrize("name", ["static", pytest.param("offloaded_static", marks=offloads)])
def test_a_static_cache_that_would_lose_state_is_refused(method, name):
    heads = {} if method == "flash" else {"num_attention_heads": 2}
    model = tn.TransNormerForCausalLM(tn.preset(f"{method}-tiny", hidden_size=64, **heads)).eval()
    for length in (10, 70):
        with pytest.raises(ConfigError, match="leave cache_implementation out"):
            model.generate(prompt(1, length), max_new_tokens=5, pad_token_id=PAD, cache_implementation=name)
    with pytest.raises(ConfigError, match="DecodeCache"):
        model(prompt(1, 70), past_key_values=StaticCache(config=model.config, max_cache_len=128))


@pytest.mark.parametrize("method", ["vanilla", "flash_quad", "long_short", "reformer"])
@pytest.mark.parametrize("name", ["static", pytest.param("offloaded", marks=offloads)])
def test_other_caches_work_where_all_keys_are_kept(method, name):
    heads = {} if method == "flash_quad" else {"num_attention_heads": 2}
    model = tn.TransNormerForCausalLM(tn.preset(f"{method}-tiny", hidden_size=64, **heads)).eval()
    arguments = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": PAD, "disable_compile": True}
    other = model.generate(prompt(2, 70), **arguments, cache_implementation=name)
    assert torch.equal(other, model.generate(prompt(2, 70), **arguments))


def test_a_cache_that_is_not_made_for_the_model_is_refused():
    recurrent = model_of("linear_elu")
    for cache in (DynamicCache(), DynamicCache(config=recurrent.config), DynamicCache(config=model_of("t2").config)):
        with pytest.raises(ConfigError, match="DecodeCache"):
            recurrent(prompt(1, 9), past_key_values=cache)
        with pytest.raises(ConfigError, match="DecodeCache"):
            recurrent.generate(prompt(1, 9), past_key_values=cache, max_new_tokens=2, pad_token_id=PAD)
    windowed = model_of("t2")
    with pytest.raises(ConfigError, match="must be a transformers Cache, got tuple"):
        windowed(prompt(1, 9), past_key_values=())
    with pytest.raises(ConfigError, match="cannot hold its state"):
        windowed(prompt(1, 9), past_key_values=DynamicCache(config=model_of("vanilla").config))


# All kinds of state: keys of all tokens, keys of a window, a recurrent one, and both.
KEEPERS = ["softmax", "flash_quad", "reformer", "long_short"]
FORGETTERS = ["diag", "norm", "flash", "parallel", "sequential"]


def layers_of(mixer: str, **fields: int) -> tn.TransNormerForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_attention_heads": 1, "num_hidden_layers": 2}
    config = tn.TransNormerConfig(**sizes, mixers=[mixer] * 2, **fields)
    return tn.TransNormerForCausalLM(config).double().eval()


def random_ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 50, (batch, length), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("mixer", KEEPERS + FORGETTERS)
@torch.no_grad()
def test_chosen_rows_continue_as_they_would_have(mixer):
    model, ids, mask = layers_of(mixer), random_ids(3, 80), torch.ones(3, 80, dtype=torch.long)
    mask[1, :20] = 0
    cache, rows = tn.DecodeCache(model.config), torch.tensor([2, 1])
    model(ids[:, :70], attention_mask=mask[:, :70], past_key_values=cache)
    cache.batch_select_indices(rows)
    chosen = model(ids[rows, 70:], attention_mask=mask[rows], past_key_values=cache).logits
    expected = model(ids[rows], attention_mask=mask[rows]).logits[:, 70:]
    torch.testing.assert_close(chosen, expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("mixer", KEEPERS + FORGETTERS)
@torch.no_grad()
def test_repeated_rows_continue_each_for_itself(mixer):
    model, ids = layers_of(mixer), random_ids(2, 70)
    cache = tn.DecodeCache(model.config)
    model(ids, past_key_values=cache)
    cache.batch_repeat_interleave(2)
    longer = torch.cat([ids.repeat_interleave(2, dim=0), random_ids(4, 5)], dim=1)
    repeated = model(longer[:, 70:], past_key_values=cache).logits
    torch.testing.assert_close(repeated, model(longer).logits[:, 70:], atol=1e-10, rtol=0)


@pytest.mark.parametrize(("mixer", "length"), [*((mixer, 70) for mixer in KEEPERS), ("diag", 20)])
@torch.no_grad()
def test_tokens_that_were_cropped_were_never_read(mixer, length):
    model, ids = layers_of(mixer), random_ids(2, length + 20)
    cache = tn.DecodeCache(model.config)
    model(ids[:, :length], past_key_values=cache)
    model(random_ids(2, 3), past_key_values=cache)
    cache.crop(-3)
    assert cache.get_seq_length() == length
    again = model(ids[:, length:], past_key_values=cache).logits
    torch.testing.assert_close(again, model(ids).logits[:, length:], atol=1e-10, rtol=0)
    cache.crop(0)
    assert cache.get_seq_length() == length + 20
    for wrong in (3, -length - 21):
        with pytest.raises(ConfigError, match="forgets the last three"):
            cache.crop(wrong)


@pytest.mark.parametrize("mixer", FORGETTERS)
@torch.no_grad()
def test_a_state_that_cannot_be_rolled_back_says_so_and_stays(mixer):
    model, ids = layers_of(mixer), random_ids(2, 75)
    cache = tn.DecodeCache(model.config)
    model(ids[:, :70], past_key_values=cache)
    with pytest.raises(ConfigError, match="before its last tokens"):
        cache.crop(-3)
    after = model(ids[:, 70:], past_key_values=cache).logits
    torch.testing.assert_close(after, model(ids).logits[:, 70:], atol=1e-10, rtol=0)


@pytest.mark.reliability("R15")
def test_a_saved_and_restored_state_continues_identically(tmp_path):
    """The cache is made of plain tensors: a copy taken in the middle continues with the same tokens."""
    model = model_of("t2")
    ids = prompt(1, 90)
    cache = tn.DecodeCache(model.config)
    with torch.no_grad():
        model(ids, past_key_values=cache)
        torch.save([(layer.__dict__) for layer in cache.layers], tmp_path / "state.pt")
        expected = [model(prompt(1, 50), past_key_values=cache).logits]
        expected.append(model(prompt(1, 1), past_key_values=cache).logits)
        restored = tn.DecodeCache(model.config)
        for layer, saved in zip(restored.layers, torch.load(tmp_path / "state.pt", weights_only=True), strict=True):
            layer.__dict__.update(saved)
        restored.seen_tokens = 90
        again = [model(prompt(1, 50), past_key_values=restored).logits]
        again.append(model(prompt(1, 1), past_key_values=restored).logits)
    assert all(torch.equal(a, b) for a, b in zip(expected, again, strict=True))
