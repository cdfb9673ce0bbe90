"""Decoding at full speed: every tensor of a step stays where it is, so that a GPU runs the step as one CUDA graph."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from transnormer.cuda_graph import capture
from transnormer.errors import ConfigError
from transnormer.generate.temperature import check_temperature
from transnormer.mixers.components.fixed_state import FixedState
from transnormer.mixers.contract import Mixer
from transnormer.mixers.registry import list_mixers, mixer_class
from transnormer.models.cache import DecodeCache, read_state
from transnormer.models.heads import TransNormerForCausalLM
from transnormer.models.layers import Layer
from transnormer.ops.shapes import check_mask_dtype

Forward = Callable[[TransNormerForCausalLM, Tensor, Sequence[FixedState]], Tensor]


class Decoder:
    """Continues `batch_size` texts token by token: `prefill(prompts)`, then `generate(count)` as often as wanted.

    Takes the likeliest token, or samples at a `temperature` from torch's global generator (torch.manual_seed repeats
    a text). On CUDA the step of a model whose state has a constant size is recorded once and replayed, `compiled`
    before; a cache that grows (`max_context` tokens at most) is read at another length each time, and stepped eagerly.
    """

    def __init__(
        self,
        model: TransNormerForCausalLM,
        batch_size: int = 1,
        *,
        max_context: int | None = None,
        temperature: float | None = None,
        compiled: bool = True,
    ) -> None:
        growing = _growing_mixers(model)
        for name, number in (("batch_size", batch_size), ("max_context", max_context)):
            if number is not None and number < 1:
                raise ConfigError(f"{name} must be at least 1, got {number}")
        if growing and max_context is None:
            raise ConfigError(
                f"the state of {', '.join(growing)} grows with the text, so its room must be known beforehand",
                "pass max_context=, the number of tokens of prompt and continuation together",
            )
        if temperature is not None:
            check_temperature(temperature, "leave it out for the likeliest text")
        self.model = model.eval()
        self.temperature = temperature
        self.compiled = compiled
        self.growing = bool(growing)
        self.room = min(
            max_context if growing and max_context else sys.maxsize,
            model.config.max_position_embeddings if model.config.position_embedding == "learned" else sys.maxsize,
        )
        # Tokens that the state has taken in, on the host and on the device; None: there is no text yet.
        self.seen: int | None = None
        self.length = torch.zeros(batch_size, dtype=torch.long, device=model.device)
        # The newest token, which the next step takes in.
        self.token = torch.zeros(batch_size, 1, dtype=torch.long, device=model.device)
        self.states = fixed_states(model, self.length, max_context or 1)
        self._replay: Callable[[], object] | None = None
        if model.device.type == "cuda" and not growing:
            self.record()

    @property
    def state_bytes(self) -> int:
        """Bytes that one sequence takes between two steps."""
        return sum(state.nbytes for state in self.states) // len(self.length)

    def record(self) -> None:
        """Compile and capture `advance` as a CUDA graph; the text so far is lost.

        A growing cache is then read as far as it is filled now, at every replay: good for measuring that length only.
        """
        forward = torch.compile(next_logits, fullgraph=True) if self.compiled else next_logits
        with torch.cuda.device(self.length.device):  # a graph is recorded on the current device
            self._replay = capture(functools.partial(self._advance, forward))

    @torch.no_grad()
    def prefill(self, prompt_ids: Tensor, attention_mask: Tensor | None = None) -> None:
        """Begin new texts with `prompt_ids` [B, T], padded on the left where `attention_mask` [B, T] is 0.

        All but the last token are read in one parallel forward; the last is the first step's.
        """
        mask = self._check_prompt(prompt_ids, attention_mask)
        prompt_ids, mask = prompt_ids.to(self.token.device), mask.to(self.token.device)
        self.length.copy_(mask.sum(dim=1) - 1)
        self.token.copy_(prompt_ids[:, -1:])
        self.seen = prompt_ids.shape[1] - 1
        for state in self.states:
            state.forget()
        if not self.seen:
            return
        cache = DecodeCache(self.model.config)
        padded = None if bool(mask.all()) else mask[:, :-1]
        self.model.model(input_ids=prompt_ids[:, :-1], attention_mask=padded, past_key_values=cache)
        for index, state in enumerate(self.states):
            state.load(read_state(cache, index, self.length))

    def step(self) -> Tensor:
        """Take the newest token in and choose the next: [B, 1] on the device, overwritten by the step after it."""
        if self.seen is None:
            raise ConfigError("the decoder has no text to continue", "call prefill(prompt_ids) first")
        if self.seen >= self.room:
            raise ConfigError(
                f"the text has {self.seen} tokens, and there is no room for more",
                "raise max_context, or the model's max_position_embeddings where its positions are learned",
            )
        self.advance()
        self.seen += 1
        return self.token

    def advance(self) -> None:
        """The step itself, without a look at what the host knows: `seen` and the room there is."""
        if self._replay is not None:
            self._replay()
        else:
            self._advance(next_logits)

    def generate(self, count: int) -> Tensor:
        """The next `count` tokens of each text [B, count], on the CPU; the device is waited for once, at the end."""
        if count < 1:
            raise ConfigError(f"count must be at least 1, got {count}")
        tokens = torch.empty(len(self.length), count, dtype=torch.long, device=self.length.device)
        for index in range(count):
            tokens[:, index : index + 1] = self.step()
        return tokens.cpu()

    @torch.no_grad()
    def _advance(self, forward: Forward) -> None:
        logits = forward(self.model, self.token, self._states_in_use())
        if self.temperature is not None:
            # The largest of logits plus Gumbel noise is a sample of their softmax, and needs no word from the host.
            noise = torch.empty_like(logits, dtype=torch.float32).exponential_().log()
            logits = logits.float() / self.temperature - noise
        torch.argmax(logits, dim=-1, keepdim=True, out=self.token)
        self.length += 1

    def _states_in_use(self) -> list[FixedState]:
        """The states, of a growing one only the slots of the text so far and of the token to come."""
        states = []
        for mixer, state in zip(_mixers(self.model), self.states, strict=True):
            if not mixer.traits.recurrent:
                assert self.seen is not None
                used = {name: state[name][:, : self.seen + 1] for name in ("keys", "values")}
                state = FixedState(length=self.length, **used)
            states.append(state)
        return states

    def _check_prompt(self, prompt_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """The prompt's mask [B, T], of ones where none is given."""
        batch = len(self.length)
        if prompt_ids.dim() != 2 or prompt_ids.shape[0] != batch or not prompt_ids.shape[1]:
            raise ConfigError(
                f"prompt_ids must be [batch, tokens] = [{batch}, 1 or more], got {list(prompt_ids.shape)}",
                "build the decoder with the batch size of the prompts",
            )
        if prompt_ids.shape[1] > self.room:
            raise ConfigError(
                f"a prompt of {prompt_ids.shape[1]} tokens, but there is room for {self.room}",
                "shorten it, or raise max_context, or max_position_embeddings where positions are learned",
            )
        if attention_mask is None:
            return torch.ones_like(prompt_ids, dtype=torch.bool)
        if attention_mask.shape != prompt_ids.shape:
            raise ConfigError(
                f"attention_mask must have the prompt's shape {list(prompt_ids.shape)}, "
                f"got {list(attention_mask.shape)}"
            )
        check_mask_dtype("attention_mask", attention_mask)
        mask = attention_mask.bool()
        if not mask[:, -1].all():
            raise ConfigError("a prompt ends with padding", "pad on the left: tokenizer(..., padding_side='left')")
        if self.growing and not mask.all():
            raise ConfigError(
                "a model whose state grows with the text decodes prompts of one length only",
                "decode them one by one, or with model.generate",
            )
        return mask


def next_logits(model: TransNormerForCausalLM, token: Tensor, states: Sequence[FixedState]) -> Tensor:
    """Logits [B, V] of the token after `token` [B, 1], which the states take in."""
    return model.lm_head(model.model.step(token, states)[:, 0])


def fixed_states(model: TransNormerForCausalLM, length: Tensor, capacity: int) -> list[FixedState]:
    """The empty state of each layer, on the device of `length` [B], with room for `capacity` tokens where it grows."""
    return [mixer.fixed_state(length, capacity, model.dtype) for mixer in _mixers(model)]


def _mixers(model: TransNormerForCausalLM) -> list[Mixer]:
    return [cast(Layer, layer).mixer for layer in model.model.layers]


def _growing_mixers(model: object) -> list[str]:
    """Those of a model's mixers whose state grows with the text; an error where the model cannot decode like this."""
    if not isinstance(model, TransNormerForCausalLM):
        raise ConfigError(f"{type(model).__name__} does not continue texts", "give a TransNormerForCausalLM")
    assert model.config.mixers is not None
    used = sorted(set(model.config.mixers))
    for name in used:
        if mixer_class(name).step is Mixer.step:
            able = [other for other in list_mixers() if mixer_class(other).step is not Mixer.step]
            raise ConfigError(
                f"{name} cannot decode on a state of fixed shape",
                f"use model.generate, or one of those that can: {', '.join(able)}",
            )
    return [name for name in used if not mixer_class(name).traits.recurrent]
