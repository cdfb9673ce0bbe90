"""The decoder is generate(): the same tokens from tensors that never move, on the CPU as on a GPU."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import transnormer as tn
from transnormer.errors import ConfigError
from transnormer.generate.decoder import Decoder, fixed_states, has_fixed_state, next_logits
from transnormer.generate.sampling import Sampling

METHODS = ["t1", "t2", "vanilla", "linear_elu"]
PAD = 256


def model_of(method: str, **overrides: Any) -> tn.TransNormerForCausalLM:
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2}
    config = tn.preset(f"{method}-tiny", **{**shape, "tie_word_embeddings": False, **overrides})
    model = tn.TransNormerForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)  # a fresh model repeats itself: its tokens must depend on the state
    return model


def prompt(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 256, (batch, length), generator=torch.Generator().manual_seed(1))


def decoded(model: tn.TransNormerForCausalLM, ids: torch.Tensor, count: int, **options: Any) -> torch.Tensor:
    decoder = Decoder(model, ids.shape[0], max_context=ids.shape[1] + count, **options)
    decoder.prefill(ids)
    return decoder.generate(count)


def generated(model: tn.TransNormerForCausalLM, ids: torch.Tensor, count: int) -> torch.Tensor:
    out = model.generate(ids, max_new_tokens=count, do_sample=False, pad_token_id=PAD, eos_token_id=None)
    return out[:, ids.shape[1] :].cpu()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65])
def test_greedy_equals_generate(method: str, length: int) -> None:
    model, ids = model_of(method), prompt(3, length)
    expected = generated(model, ids, 80)
    assert expected.unique().numel() > 5
    assert torch.equal(decoded(model, ids, 80), expected)


@pytest.mark.parametrize("method", METHODS)
def test_greedy_equals_generate_over_hundreds_of_tokens(method: str) -> None:
    model, ids = model_of(method), prompt(1, 130)
    assert torch.equal(decoded(model, ids, 400), generated(model, ids, 400))


@pytest.mark.parametrize("overrides", [{"position": "rope"}, {"position_embedding": "learned"}, {"norm_first": False}])
def test_greedy_equals_generate_in_other_model_configs(overrides: dict[str, Any]) -> None:
    model, ids = model_of("t2", **overrides), prompt(2, 60)
    assert torch.equal(decoded(model, ids, 80), generated(model, ids, 80))


@pytest.mark.parametrize("method", ["t1", "t2", "linear_elu"])
def test_a_left_padded_batch_gives_what_each_prompt_gives_alone(method: str) -> None:
    model, lengths = model_of(method), (100, 64, 1)
    ids, mask = torch.full((3, 100), PAD), torch.zeros(3, 100, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, 100 - length :], mask[row, 100 - length :] = prompt(1, length)[0], 1
    decoder = Decoder(model, 3)
    decoder.prefill(ids, mask)
    together = decoder.generate(70)
    for row, length in enumerate(lengths):
        assert torch.equal(together[row : row + 1], decoded(model, prompt(1, length), 70))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("length", [1, 70])
def test_a_sequence_may_be_asked_for_in_pieces_and_begun_anew(method: str, length: int) -> None:
    model, ids = model_of(method), prompt(2, length)
    decoder = Decoder(model, 2, max_context=200)
    decoder.prefill(prompt(2, 90) // 2)
    decoder.generate(40)
    decoder.prefill(ids)
    pieces = [decoder.generate(count) for count in (1, 59, 20)]
    assert torch.equal(torch.cat(pieces, dim=1), generated(model, ids, 80))


@pytest.mark.parametrize("method", METHODS)
def test_no_tensor_of_the_state_ever_moves_or_grows(method: str) -> None:
    decoder = Decoder(model_of(method), 2, max_context=300)
    tensors = [decoder.token, decoder.length, *(tensor for state in decoder.states for tensor in state.values())]
    before = [(tensor.data_ptr(), tensor.shape, tensor.dtype) for tensor in tensors]
    size = decoder.state_bytes
    for length in (1, 130):
        decoder.prefill(prompt(2, length))
        decoder.generate(70)
    after = [decoder.token, decoder.length, *(tensor for state in decoder.states for tensor in state.values())]
    assert [(tensor.data_ptr(), tensor.shape, tensor.dtype) for tensor in after] == before
    assert decoder.state_bytes == size


def test_the_language_model_remembers_a_sequence_in_less_than_a_megabyte() -> None:
    with torch.device("meta"):
        model = tn.TransNormerForCausalLM(tn.preset("t2-lm")).to(torch.bfloat16)
    states = fixed_states(model, torch.zeros(1, dtype=torch.long, device="meta"), capacity=131_072)
    memories, keys = 3 * 8 * 64 * 64 * 4, 3 * 2 * 64 * 512 * 2
    assert sum(state.nbytes for state in states) == memories + keys == 786_432


def test_state_bytes_are_those_of_one_sequence() -> None:
    model = model_of("vanilla")
    assert Decoder(model, 3, max_context=10).state_bytes == 2 * 2 * 10 * 64 * 4
    assert Decoder(model_of("t2"), 3).state_bytes == Decoder(model_of("t2"), 1).state_bytes


@pytest.mark.parametrize("method", METHODS)
def test_a_model_in_half_precision_decodes(method: str) -> None:
    """Rounding may part two sequences; the first tokens it leaves alone."""
    model, ids = model_of(method).to(torch.bfloat16), prompt(2, 70)
    assert torch.equal(decoded(model, ids, 1), generated(model, ids, 1))


@pytest.mark.parametrize("method", METHODS)
def test_the_whole_step_compiles_without_a_break(method: str) -> None:
    torch.compiler.reset()
    model, ids = model_of(method), prompt(2, 60)
    decoder = Decoder(model, 2, max_context=100)
    compiled = torch.compile(next_logits, fullgraph=True, backend="aot_eager")
    decoder._replay = functools.partial(decoder._step, compiled)
    decoder.prefill(ids)
    assert torch.equal(decoder.generate(10), generated(model, ids, 10))


def test_a_seed_repeats_a_sample_and_another_does_not() -> None:
    model = model_of("t2")

    def sample(seed: int, temperature: float) -> torch.Tensor:
        torch.manual_seed(seed)
        return decoded(model, prompt(2, 20), 40, sampling=Sampling(temperature))

    assert torch.equal(sample(1, 1.0), sample(1, 1.0))
    assert not torch.equal(sample(1, 1.0), sample(2, 1.0))
    assert torch.equal(sample(3, 1e-5), decoded(model, prompt(2, 20), 40))


def test_samples_follow_the_softmax_at_the_temperature() -> None:
    model, count, temperature = model_of("t2", vocab_size=8), 20_000, 1.7
    decoder = Decoder(model, count, sampling=Sampling(temperature))
    torch.manual_seed(0)
    decoder.prefill(torch.full((count, 1), 3))
    frequencies = decoder.generate(1).flatten().bincount(minlength=8) / count
    with torch.no_grad():
        expected = (model(torch.tensor([[3]])).logits[0, -1] / temperature).softmax(dim=-1)
    assert (expected > 0.01).sum() > 2
    torch.testing.assert_close(frequencies, expected, atol=0.015, rtol=0)


def test_a_stream_is_the_sequence_token_by_token() -> None:
    model, ids = model_of("t2"), prompt(2, 20)
    decoder = Decoder(model, 2)
    decoder.prefill(ids)
    tokens = list(decoder.stream(30))
    assert all(token.shape == (2,) and token.device.type == "cpu" for token in tokens)
    assert torch.equal(torch.stack(tokens, dim=1), generated(model, ids, 30))


def test_which_models_have_a_state_of_constant_size() -> None:
    assert has_fixed_state(model_of("t2"))
    assert has_fixed_state(model_of("linear_elu"))
    assert not has_fixed_state(model_of("vanilla"))  # grows
    assert not has_fixed_state(model_of("performer"))  # recurrent, but without a step
    assert not has_fixed_state(torch.nn.Linear(2, 2))


def test_gradients_and_training_mode_are_left_as_they_should() -> None:
    model = model_of("t2").train()
    decoder = Decoder(model, 1)
    decoder.prefill(prompt(1, 5))
    stream = decoder.stream(3)
    assert not next(stream).requires_grad
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    assert not model.training


def test_models_that_cannot() -> None:
    with pytest.raises(ConfigError, match="TransNormerForMaskedLM does not continue sequences"):
        Decoder(tn.TransNormerForMaskedLM(tn.preset("t2-tiny", causal=False)))
    with pytest.raises(ConfigError, match=r"performer cannot decode .* diag, linear_elu, norm, softmax"):
        Decoder(model_of("performer"))
    with pytest.raises(ConfigError, match=r"softmax grows with the sequence.*max_context"):
        Decoder(model_of("vanilla"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"max_context": 0}, "max_context must be at least 1"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Decoder(model_of("t2"), **options)


def test_wrong_prompts() -> None:
    decoder = Decoder(model_of("t2"), 2)
    with pytest.raises(ConfigError, match="no sequence to continue"):
        decoder.generate(1)
    for wrong in (prompt(3, 4), prompt(2, 0), prompt(2, 4)[0]):
        with pytest.raises(ConfigError, match=r"prompt_ids must be \[batch, tokens\] = \[2, 1 or more\]"):
            decoder.prefill(wrong)
    with pytest.raises(ConfigError, match=r"attention_mask must have the prompt's shape \[2, 4\]"):
        decoder.prefill(prompt(2, 4), torch.ones(2, 5))
    with pytest.raises(ConfigError, match="attention_mask must be bool or integers, 1 = real token"):
        decoder.prefill(prompt(2, 4), torch.zeros(2, 4))
    with pytest.raises(ConfigError, match="ends with padding"):
        decoder.prefill(prompt(2, 4), torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]))
    decoder.prefill(prompt(2, 4))
    with pytest.raises(ConfigError, match="count must be at least 1"):
        decoder.generate(0)
    with pytest.raises(ConfigError, match="prompts of one length only"):
        Decoder(model_of("vanilla"), 2, max_context=9).prefill(prompt(2, 4), torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1]]))


@pytest.mark.parametrize(
    ("method", "overrides"),
    [("vanilla", {}), ("t2", {"position_embedding": "learned", "max_position_embeddings": 20})],
    ids=["cache", "learned"],
)
def test_a_sequence_may_fill_its_capacity_and_no_more(method: str, overrides: dict[str, Any]) -> None:
    decoder = Decoder(model_of(method, **overrides), 1, max_context=20)
    with pytest.raises(ConfigError, match="a prompt of 21 tokens, but the capacity is 20"):
        decoder.prefill(prompt(1, 21))
    decoder.prefill(prompt(1, 18))
    stream = decoder.stream(5)
    assert len([next(stream) for _ in range(3)]) == 3  # the last of them is not taken in
    with pytest.raises(ConfigError, match="the sequence has 20 tokens, which is its capacity"):
        next(stream)
    with pytest.raises(ConfigError, match="the sequence has 20 tokens, which is its capacity"):
        decoder.generate(1)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_greedy_equals_generate_on_a_gpu(method: str, compiled: bool) -> None:
    torch.compiler.reset()
    model = model_of(method).cuda()
    decoder = Decoder(model, 2, max_context=300, compiled=compiled)
    for length in (1, 60, 64, 100):
        ids = prompt(2, length).cuda()
        decoder.prefill(ids)
        tokens = decoder.generate(100).cuda()
        with torch.no_grad():
            logits = model(torch.cat([ids, tokens], dim=1)).logits[:, length - 1 : -1]
        chosen = logits.gather(-1, tokens[..., None])[..., 0]
        # Sums in another order may flip a tie.
        assert ((logits.amax(dim=-1) - chosen) / logits.std(dim=-1)).max() < 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 64, 65])  # few rows, which have kernels of their own, and one too many
@pytest.mark.parametrize("method", METHODS)
def test_greedy_equals_generate_in_half_precision(method: str, batch: int) -> None:
    torch.compiler.reset()
    model = model_of(method).cuda().bfloat16()
    decoder = Decoder(model, batch, max_context=100)
    ids = prompt(batch, 30).cuda()
    decoder.prefill(ids)
    tokens = decoder.generate(40).cuda()
    with torch.no_grad():
        logits = model.float()(torch.cat([ids, tokens], dim=1)).logits[:, 29:-1]
    chosen = logits.gather(-1, tokens[..., None])[..., 0]
    gap = (logits.amax(dim=-1) - chosen) / logits.std(dim=-1)
    # Activations were rounded: where all scores of a ReLU but a few are zero, rounding alone makes a gap of 1 once in
    # some thousand tokens, in the parallel forward as well. A wrong sequence or a wrong step has gaps of 2 all along.
    assert gap.mean(dim=1).max() < 0.1
    assert batch == 1 or gap.mean(dim=0).max() < 0.5


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_samples_on_a_gpu_follow_the_seed_and_differ_from_step_to_step(compiled: bool) -> None:
    torch.compiler.reset()
    model = model_of("t2").cuda()
    decoder = Decoder(model, 64, sampling=Sampling(5.0, top_k=200, top_p=0.99), compiled=compiled)

    def sample(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        decoder.prefill(torch.full((64, 1), 3))
        return decoder.generate(20)

    first = sample(1)
    assert torch.equal(first, sample(1))
    assert not torch.equal(first, sample(2))
    assert first.unique(dim=0).shape[0] == 64


@pytest.mark.gpu
def test_a_stream_on_a_gpu_may_be_left_and_begun_anew() -> None:
    decoder = Decoder(model_of("t2").cuda(), 1)
    decoder.prefill(prompt(1, 30))
    whole = decoder.generate(40)[0].tolist()
    decoder.prefill(prompt(1, 30))
    stream = decoder.stream(40)
    assert [int(next(stream)) for _ in range(7)] == whole[:7]
    stream.close()
    decoder.prefill(prompt(1, 30))
    assert [int(token) for token in decoder.stream(40)] == whole
