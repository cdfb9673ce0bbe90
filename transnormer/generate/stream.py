"""Write text with a causal model, piece by piece."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from transnormer.data.tokenizers import text_start
from transnormer.errors import ConfigError
from transnormer.generate.decoder import Decoder, has_fixed_state
from transnormer.generate.detokenize import IncrementalDetokenizer
from transnormer.generate.sampling import Sampling


@dataclass
class Pace:
    """How many tokens were written, and when."""

    started: float
    tokens: int = 0
    first: float = 0.0
    last: float = 0.0

    def count(self) -> None:
        """One more token is there."""
        self.last = time.perf_counter()
        self.first = self.first or self.last
        self.tokens += 1

    def __str__(self) -> str:
        if not self.tokens:
            return "0 tokens"
        text = f"{self.tokens:,} tokens, the first after {self.first - self.started:.2f} s"
        if self.tokens == 1:
            return text
        return f"{text}, then {(self.tokens - 1) / (self.last - self.first):,.0f} tokens/s"


def stream_text(
    model: PreTrainedModel,
    tokenizer: Any,
    prompt: str,
    max_new_tokens: int,
    show: Callable[[str], object],
    *,
    sampling: Sampling | None = None,
    seed: int | None = None,
    stop_at_eos: bool = True,
    compiled: bool = False,
) -> Pace:
    """Continue `prompt` and `show` each piece of text as it is completed; what was shown never changes.

    Without a `sampling` decoding is greedy. A `seed` sets torch's global generator, and repeats the text on the same
    machine. A model whose state has a constant size runs on the `Decoder`, any other on Hugging Face's generate.
    """
    if max_new_tokens < 1:
        raise ConfigError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    if seed is not None and not 0 <= seed < 2**64:
        raise ConfigError(f"seed {seed} is outside 0 .. 2^64 - 1", "set a seed such as 0")
    prompt_ids = encode_prompt(tokenizer, prompt)
    if max(prompt_ids) >= (known := model.get_input_embeddings().weight.shape[0]):
        raise ConfigError(
            f"the tokenizer makes token {max(prompt_ids)} of the prompt, but the model knows 0 to {known - 1}",
            "give a folder whose tokenizer is the model's own",
        )
    writer = _Writer(IncrementalDetokenizer(tokenizer, prompt_ids), _end_ids(model) if stop_at_eos else set(), show)
    ids = torch.tensor([prompt_ids], device=model.device)
    if has_fixed_state(model):
        _with_decoder(model, ids, max_new_tokens, writer, sampling, seed, compiled)
    else:
        _with_hugging_face(model, ids, max_new_tokens, writer, sampling, seed)
    writer.flush()
    return writer.pace


class _Writer(BaseStreamer):
    """Takes tokens one by one and shows text; nothing behind an end of sequence is shown."""

    def __init__(self, detokenizer: IncrementalDetokenizer, ends: set[int], show: Callable[[str], object]) -> None:
        self.detokenizer, self.ends, self.show = detokenizer, ends, show
        self.pace = Pace(time.perf_counter())

    def push(self, token: int) -> bool:
        """Show what this token completes; False: it ends the sequence."""
        if token in self.ends:
            return False
        self.pace.count()
        if piece := self.detokenizer.push(token):
            self.show(piece)
        return True

    def flush(self) -> None:
        if piece := self.detokenizer.flush():
            self.show(piece)

    def put(self, value: Tensor) -> None:
        """What transformers' generate calls: with the prompt [1, T], then with each token [1]."""
        if value.dim() == 1:
            self.push(int(value))

    def end(self) -> None:
        """What transformers' generate calls at the end."""


def _with_decoder(
    model: Any, ids: Tensor, count: int, writer: _Writer, sampling: Sampling | None, seed: int | None, compiled: bool
) -> None:
    decoder = Decoder(model, sampling=sampling, compiled=compiled)
    decoder.prefill(ids)
    _set_seed(seed)  # only now: to record a graph is to run it, which draws numbers
    for token in decoder.stream(count):
        if not writer.push(int(token)):
            break


def _with_hugging_face(
    model: Any, ids: Tensor, count: int, writer: _Writer, sampling: Sampling | None, seed: int | None
) -> None:
    # An option that is not named here would be the model's own generation_config's, top_k even transformers' 50.
    options: dict[str, Any] = {"do_sample": False}
    if sampling is not None:
        chosen = {"temperature": sampling.temperature, "top_k": sampling.top_k or 0, "top_p": sampling.top_p or 1.0}
        options = {"do_sample": True, **chosen}
    ends = sorted(writer.ends)
    _set_seed(seed)
    model.eval().generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        eos_token_id=ends or None,
        pad_token_id=ends[0] if ends else 0,  # of no use to a single sequence, but asked for
        streamer=writer,
        **options,
    )


def _set_seed(seed: int | None) -> None:
    if seed is not None:
        torch.manual_seed(seed)


def encode_prompt(tokenizer: Any, prompt: str) -> list[int]:
    """Ids of the prompt without any closing token; an empty one becomes the token that separates documents."""
    if not prompt.isascii() and prompt != prompt.encode("utf-8", "replace").decode():
        raise ConfigError("the prompt is not valid Unicode text", hint="check the encoding of your terminal")
    ids = list(tokenizer(prompt, add_special_tokens=False)["input_ids"])
    if ids:
        return ids
    if (start := text_start(tokenizer)) is None:
        raise ConfigError("the prompt is empty and the tokenizer has no token to begin with", 'use --prompt "..."')
    return [start]


def _end_ids(model: PreTrainedModel) -> set[int]:
    configured = getattr(model.generation_config, "eos_token_id", None)
    if configured is None:
        configured = model.config.eos_token_id
    if configured is None:
        return set()
    return {configured} if isinstance(configured, int) else set(configured)
