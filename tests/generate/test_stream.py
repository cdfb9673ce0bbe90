"""Streamed text is generate()'s: on the decoder where the state has a constant size, on Hugging Face elsewhere."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import transformers

import transnormer as tn
from transnormer.data.tokenizers import byte_tokenizer, word_tokenizer, word_vocabulary
from transnormer.errors import ConfigError, DataError
from transnormer.generate import decoder
from transnormer.generate.load import decode_dtype, load_causal_lm
from transnormer.generate.sampling import Sampling
from transnormer.generate.stream import encode_prompt, stream_text

TOKENIZER = byte_tokenizer()
ON_THE_DECODER = ["t1-tiny", "t2-tiny"]


@pytest.fixture(scope="module", params=[*ON_THE_DECODER, "vanilla-tiny", "performer-tiny", "gpt2"])
def model(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    if request.param == "gpt2":
        shape = {"vocab_size": 259, "n_positions": 256, "n_embd": 32, "n_layer": 2, "n_head": 2}
        ends = {"eos_token_id": TOKENIZER.eos_token_id, "bos_token_id": TOKENIZER.eos_token_id}
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, **ends)).eval()
    config = tn.preset(request.param, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
    return tn.TransNormerForCausalLM(config).eval()


def pieces_of(model: Any, prompt: str = "def main(", count: int = 80, **options: Any) -> list[str]:
    pieces: list[str] = []
    stream_text(model, TOKENIZER, prompt, count, pieces.append, **options)
    return pieces


def written(model: Any, prompt: str = "def main(", count: int = 80, **options: Any) -> str:
    return "".join(pieces_of(model, prompt, count, **options))


def test_greedy_equals_generate(model: Any) -> None:
    ids = torch.tensor([encode_prompt(TOKENIZER, "def main(")])
    with torch.inference_mode():
        expected = model.generate(ids, max_new_tokens=80, do_sample=False, pad_token_id=0)[0, ids.shape[1] :]
    assert written(model) == TOKENIZER.decode(expected, skip_special_tokens=True)


def test_sampling_equals_that_of_hugging_face_where_it_samples(model: Any) -> None:
    if decoder.has_fixed_state(model):
        pytest.skip("draws other numbers")
    ids = torch.tensor([encode_prompt(TOKENIZER, "def main(")])
    torch.manual_seed(5)
    options = {"do_sample": True, "temperature": 0.9, "top_k": 40, "top_p": 0.95, "pad_token_id": 0}
    expected = model.generate(ids, max_new_tokens=60, **options)[0, ids.shape[1] :]
    found = written(model, count=60, sampling=Sampling(0.9, top_k=40, top_p=0.95), seed=5)
    assert found == TOKENIZER.decode(expected, skip_special_tokens=True)


def test_text_comes_in_pieces_that_are_the_whole(model: Any) -> None:
    pieces = pieces_of(model, sampling=Sampling(), seed=1, stop_at_eos=False)
    assert len(pieces) > 20
    assert all(pieces)
    assert "".join(pieces) == written(model, sampling=Sampling(), seed=1, stop_at_eos=False)


def test_a_seed_repeats_the_text_and_another_does_not(model: Any) -> None:
    first, again, other = (written(model, sampling=Sampling(), seed=seed) for seed in (1, 1, 2))
    assert first == again != other


def test_sampling_limits_narrow_the_choice(model: Any) -> None:
    greedy = written(model)
    for sampling in (Sampling(top_k=1), Sampling(top_p=1e-6), Sampling(1e-4), Sampling(1e-30)):
        assert written(model, sampling=sampling, seed=2**64 - 1) == greedy
    assert written(model, sampling=Sampling(), seed=3) != greedy


def test_nothing_behind_an_end_of_sequence_is_shown_unless_asked_for(model: Any) -> None:
    ids = torch.tensor([encode_prompt(TOKENIZER, "def main(")])
    with torch.inference_mode():
        tokens = model.generate(ids, max_new_tokens=80, do_sample=False, eos_token_id=None, pad_token_id=0)[0]
    tokens = tokens[ids.shape[1] :].tolist()
    end = tokens[40]
    before = tokens[: tokens.index(end)]
    configured = model.generation_config.eos_token_id
    model.generation_config.eos_token_id = [end, 258]
    try:
        assert written(model) == TOKENIZER.decode(before, skip_special_tokens=True)
        assert written(model, stop_at_eos=False) == TOKENIZER.decode(tokens, skip_special_tokens=True)
    finally:
        model.generation_config.eos_token_id = configured


@pytest.mark.parametrize("name", ON_THE_DECODER)
def test_each_token_costs_one_step_and_none_follows_an_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tn.TransNormerForCausalLM(tn.preset(name, hidden_size=32, num_hidden_layers=2, num_attention_heads=2))
    steps, right = [], decoder.next_logits
    monkeypatch.setattr(decoder, "next_logits", lambda *given: steps.append(1) or right(*given))
    pieces_of(model, "x" * 70, 10, stop_at_eos=False)
    assert len(steps) == 10
    model.generation_config.eos_token_id = TOKENIZER.eos_token_id
    end = torch.zeros(1, 259).index_fill(1, torch.tensor([TOKENIZER.eos_token_id]), 1.0)
    monkeypatch.setattr(decoder, "next_logits", lambda *_: steps.append(1) or end)
    assert pieces_of(model, "a", 5) == []
    assert len(steps) == 11


def test_the_pace_is_told(model: Any) -> None:
    pace = stream_text(model, TOKENIZER, "a", 12, lambda piece: None, stop_at_eos=False)
    assert pace.tokens == 12
    assert pace.started < pace.first < pace.last
    rate = 11 / (pace.last - pace.first)
    assert str(pace) == f"12 tokens, the first after {pace.first - pace.started:.2f} s, then {rate:,.0f} tokens/s"
    assert str(stream_text(model, TOKENIZER, "a", 1, lambda piece: None, stop_at_eos=False)).startswith("1 tokens, the")


def test_gradients_stay_on_while_text_is_shown(model: Any) -> None:
    seen: list[bool] = []
    stream_text(model, TOKENIZER, "a", 5, lambda piece: seen.append(True), sampling=Sampling(), seed=0)
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_an_error_of_the_model_surfaces(model: Any) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("boom")

    hook = next(module for module in model.modules() if isinstance(module, torch.nn.Embedding))
    handle = hook.register_forward_pre_hook(fail)
    try:
        with pytest.raises(RuntimeError, match="boom"):
            pieces_of(model, "a", 3)
    finally:
        handle.remove()


def test_an_empty_prompt_begins_with_the_token_between_documents() -> None:
    assert encode_prompt(TOKENIZER, "") == [TOKENIZER.eos_token_id]
    words = word_tokenizer(word_vocabulary(Counter(["a", "b", "a"])))
    assert words.bos_token_id is not None  # which no text of words has
    assert encode_prompt(words, "") == [words.eos_token_id]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 99999999999999999999999}, "is outside 0"),
        ({"seed": 2**64}, "is outside 0"),
        ({"seed": -1}, "seed -1 is outside 0"),
        ({"count": 0}, "max_new_tokens must be at least 1"),
        ({"prompt": "a\udcff"}, "not valid Unicode"),
    ],
)
def test_wrong_options_are_errors_before_the_first_piece(model: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pieces_of(model, **options)


def test_a_gpu_decodes_in_bfloat16_and_keeps_the_angles_of_rotations(model: Any, tmp_path: Any) -> None:
    assert decode_dtype(torch.device("cuda")) is torch.bfloat16
    model.save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    assert load_causal_lm(tmp_path, "cpu")[0].dtype == torch.float32
    half = type(model).from_pretrained(tmp_path, dtype=torch.bfloat16)
    for name, tensor in half.state_dict().items():
        assert tensor.dtype == (torch.float32 if ".rotation." in name else torch.bfloat16), name
    assert not decoder.has_fixed_state(model) or any(".rotation." in name for name in half.state_dict())
    assert pieces_of(half, stop_at_eos=False)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["t2-tiny", "vanilla-tiny"])
def test_text_on_a_gpu_follows_the_seed_and_ends(name: str) -> None:
    torch.manual_seed(0)
    config = tn.preset(name, hidden_size=64, num_hidden_layers=2, num_attention_heads=2)
    model = tn.TransNormerForCausalLM(config).cuda().eval()
    sampling = Sampling(1.2, top_k=100, top_p=0.95)
    first, again, other = (written(model, sampling=sampling, seed=seed, stop_at_eos=False) for seed in (1, 1, 2))
    assert first == again != other
    greedy = TOKENIZER(written(model, stop_at_eos=False), add_special_tokens=False)["input_ids"]
    model.generation_config.eos_token_id = greedy[20]
    assert written(model) == TOKENIZER.decode(greedy[: greedy.index(greedy[20])])


def test_a_tokenizer_of_another_model_is_refused(model: Any) -> None:
    small = type(model)(type(model.config).from_dict({**model.config.to_dict(), "vocab_size": 50}))
    with pytest.raises(ConfigError, match="makes token 110 of the prompt, but the model knows 0 to 49"):
        written(small, "n")


def test_a_model_of_another_architecture_without_a_tokenizer_is_refused(tmp_path) -> None:
    config = transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=1, n_head=2, eos_token_id=0, bos_token_id=0)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    with pytest.raises(DataError, match=r"has no tokenizer: tokenizer.json and tokenizer_config.json are missing"):
        load_causal_lm(tmp_path, "cpu")


def test_it_is_said_which_files_of_a_tokenizer_are_missing(model: Any, tmp_path) -> None:
    model.save_pretrained(tmp_path)
    with pytest.raises(DataError, match=r"no tokenizer: tokenizer.json and tokenizer_config.json are") as caught:
        load_causal_lm(tmp_path, "cpu")
    assert caught.value.hint == "save the model's there, with its save_pretrained"
    TOKENIZER.save_pretrained(tmp_path)
    load_causal_lm(tmp_path, "cpu")
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=r"has no tokenizer: tokenizer.json is missing"):
        load_causal_lm(tmp_path, "cpu")
