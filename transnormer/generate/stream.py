"""Write text with a causal model, piece by piece, on its own decode state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation.logits_process import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from transnormer.errors import ConfigError
from transnormer.generate.decode_text import IncrementalDecoder
from transnormer.generate.temperature import check_temperature


def stream_text(
    model: PreTrainedModel,
    tokenizer: Any,
    prompt: str,
    max_new_tokens: int,
    *,
    do_sample: bool = True,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop_at_eos: bool = True,
) -> Iterator[str]:
    """The continuation of `prompt`, piece by piece; the same seed gives the same text on the same machine.

    Options are checked at once, not when the first piece is asked for.
    """
    if max_new_tokens < 1:
        raise ConfigError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    prompt_ids = encode_prompt(tokenizer, prompt)
    if seed is not None and not 0 <= seed < 2**64:
        raise ConfigError(f"seed {seed} is outside 0 .. 2^64 - 1", "set a seed such as 0")
    warpers = _warpers(temperature, top_k, top_p)
    tokens = stream_tokens(
        model, prompt_ids, max_new_tokens, warpers if do_sample else None, seed=seed, stop_at_eos=stop_at_eos
    )
    return _pieces(tokens, IncrementalDecoder(tokenizer, prompt_ids))


def _pieces(tokens: Iterator[int], decoder: IncrementalDecoder) -> Iterator[str]:
    for token in tokens:
        if piece := decoder.push(token):
            yield piece
    if piece := decoder.flush():
        yield piece


def stream_tokens(
    model: PreTrainedModel,
    prompt_ids: list[int],
    max_new_tokens: int,
    warpers: LogitsProcessorList | None,
    *,
    seed: int | None,
    stop_at_eos: bool,
) -> Iterator[int]:
    """Yields ids one by one: the prompt is read in one forward pass, then each token costs one step on the state.

    `warpers` shape the distribution that is sampled from; None takes the likeliest token.
    """
    device = model.device
    generator = torch.Generator(device=device)
    generator.seed() if seed is None else generator.manual_seed(seed)
    ends = _end_ids(model) if stop_at_eos else set()
    history = torch.tensor([prompt_ids], device=device)
    step_input, state = history, None
    model.eval()
    for _ in range(max_new_tokens):
        # Not around the yield: a generator that is left alone must not leave its caller in inference mode.
        with torch.inference_mode():
            output = model(input_ids=step_input, past_key_values=state, use_cache=True)
            step_input = _choose(output.logits[:, -1].float(), history, warpers, generator)
            state = output.past_key_values
        token = int(step_input)
        if token in ends:
            return
        yield token


def encode_prompt(tokenizer: Any, prompt: str) -> list[int]:
    """Ids of the prompt without any closing token; an empty prompt becomes the token that separates documents."""
    if not prompt.isascii() and prompt != prompt.encode("utf-8", "replace").decode():
        raise ConfigError("the prompt is not valid Unicode text", hint="check the encoding of your terminal")
    ids = list(tokenizer(prompt, add_special_tokens=False)["input_ids"])
    if ids:
        return ids
    starts = (tokenizer.bos_token_id, tokenizer.eos_token_id)
    start = next((token for token in starts if token is not None), None)
    if start is None:
        raise ConfigError("the prompt is empty and the tokenizer has no token to begin with", 'use --prompt "..."')
    return [start]


def _warpers(temperature: float, top_k: int | None, top_p: float | None) -> LogitsProcessorList:
    check_temperature(temperature, "for the likeliest text use --greedy")
    if top_k is not None and top_k < 1:
        raise ConfigError(f"top_k must be at least 1, got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ConfigError(f"top_p must be above 0 and at most 1, got {top_p}")
    warpers = LogitsProcessorList()
    if temperature != 1.0:
        warpers.append(TemperatureLogitsWarper(float(temperature)))
    if top_k is not None:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p is not None:
        warpers.append(TopPLogitsWarper(float(top_p)))
    return warpers


def _choose(logits: Tensor, history: Tensor, warpers: LogitsProcessorList | None, generator: torch.Generator) -> Tensor:
    """The next id [1, 1] from logits [1, V]."""
    if warpers is None:
        return logits.argmax(dim=-1, keepdim=True)
    probabilities = warpers(history, logits).softmax(dim=-1)
    return torch.multinomial(probabilities, num_samples=1, generator=generator)


def _end_ids(model: PreTrainedModel) -> set[int]:
    configured = getattr(model.generation_config, "eos_token_id", None)
    if configured is None:
        configured = model.config.eos_token_id
    if configured is None:
        return set()
    return {configured} if isinstance(configured, int) else set(configured)
