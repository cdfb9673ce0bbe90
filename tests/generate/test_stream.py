"""Streaming is generate(): the same tokens, one step each, on a state that does not grow."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import transnormer as tn
from transnormer.data.tokenizers import byte_tokenizer
from transnormer.errors import ConfigError
from transnormer.generate.stream import encode_prompt, stream_text

TOKENIZER = byte_tokenizer()


@pytest.fixture(scope="module", params=["t1-tiny", "t2-tiny", "vanilla-tiny"])
def model(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    config = tn.preset(request.param, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
    return tn.TransNormerForCausalLM(config).eval()


def written(model: Any, prompt: str = "def main(", count: int = 80, **options: Any) -> str:
    return "".join(stream_text(model, TOKENIZER, prompt, count, **options))


def test_greedy_equals_generate(model: Any) -> None:
    ids = torch.tensor([encode_prompt(TOKENIZER, "def main(")])
    with torch.inference_mode():
        expected = model.generate(ids, max_new_tokens=80, do_sample=False)[0, ids.shape[1] :]
    assert written(model, do_sample=False) == TOKENIZER.decode(expected, skip_special_tokens=True)


def test_a_seed_repeats_the_text_and_another_does_not(model: Any) -> None:
    assert written(model, seed=1) == written(model, seed=1) != written(model, seed=2)


def test_sampling_limits_narrow_the_choice(model: Any) -> None:
    greedy = written(model, do_sample=False)
    assert written(model, seed=3, top_k=1) == greedy
    assert written(model, seed=3, top_p=1e-6) == greedy
    assert written(model, seed=3, temperature=1e-4) == greedy
    assert written(model, seed=3) != greedy


def test_an_end_of_text_token_ends_it_unless_ignored(model: Any) -> None:
    always_end = torch.full((model.config.vocab_size,), -10.0)
    always_end[TOKENIZER.eos_token_id] = 10.0

    class Ending(torch.nn.Module):
        """The model, but its likeliest token is the end of text."""

        def __init__(self) -> None:
            super().__init__()
            self.device, self.config, self.calls = model.device, model.config, 0
            self.generation_config = type(model.generation_config)(eos_token_id=TOKENIZER.eos_token_id)

        def forward(self, **inputs: Any) -> Any:
            self.calls += 1
            output = model(**inputs)
            output.logits = always_end.expand_as(output.logits)
            return output

    ending = Ending()
    assert "".join(stream_text(ending, TOKENIZER, "a", 5, do_sample=False)) == ""
    assert ending.calls == 1
    assert list(stream_text(ending, TOKENIZER, "a", 5, do_sample=False, stop_at_eos=False)) == []
    assert ending.calls == 6


def test_each_token_costs_one_step_after_the_prompt(model: Any) -> None:
    lengths: list[int] = []
    hook = model.register_forward_pre_hook(
        lambda module, args, kwargs: lengths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        list(stream_text(model, TOKENIZER, "x" * 70, 10, do_sample=False, stop_at_eos=False))
    finally:
        hook.remove()
    assert lengths == [70] + [1] * 9


def test_an_abandoned_stream_leaves_gradients_on(model: Any) -> None:
    stream = stream_text(model, TOKENIZER, "a", 50, seed=0)
    next(stream)
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_an_error_of_the_model_surfaces(model: Any) -> None:
    hook = model.register_forward_pre_hook(lambda module, args: (_ for _ in ()).throw(RuntimeError("boom")))
    try:
        with pytest.raises(RuntimeError, match="boom"):
            list(stream_text(model, TOKENIZER, "a", 3))
    finally:
        hook.remove()


def test_an_empty_prompt_begins_with_the_token_between_documents() -> None:
    assert encode_prompt(TOKENIZER, "") == [TOKENIZER.eos_token_id]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"temperature": float("nan")}, "temperature must be above 0"),
        ({"temperature": 1e-40}, "temperature must be finite and at least 1e-30"),
        ({"temperature": float("inf")}, "temperature must be finite"),
        ({"seed": 99999999999999999999999}, "is outside 0"),
        ({"seed": -1}, "seed -1 is outside 0"),
        ({"do_sample": False, "temperature": -3.0}, "temperature must be above 0"),
        ({"do_sample": False, "top_p": 7.0}, "top_p must be above 0"),
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1"),
        ({"count": 0}, "max_new_tokens must be at least 1"),
    ],
)
def test_wrong_options(model: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        written(model, **options)


def test_the_coldest_sampling_is_greedy(model: Any) -> None:
    assert written(model, temperature=1e-30, seed=2**64 - 1) == written(model, do_sample=False)


def test_options_are_checked_before_the_first_piece(model: Any) -> None:
    with pytest.raises(ConfigError):
        stream_text(model, TOKENIZER, "a", 3, top_k=-1)
    with pytest.raises(ConfigError):
        stream_text(model, TOKENIZER, "a", 3, seed=2**64)
    with pytest.raises(ConfigError, match="not valid Unicode"):
        stream_text(model, TOKENIZER, "a\udcff", 3)
