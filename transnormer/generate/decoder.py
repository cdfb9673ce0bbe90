"""The one decoder: `transnormer generate` writes with it, `transnormer bench decode` times it.

Every tensor of a step stays at its address, so that a GPU runs a step, sampling included, as one CUDA graph.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor

from transnormer.cuda_graph import capture
from transnormer.errors import ConfigError
from transnormer.generate.sampling import Sampling
from transnormer.mixers.components.state import FixedState
from transnormer.mixers.contract import Mixer
from transnormer.mixers.registry import list_mixers, mixer_class
from transnormer.models.cache import DecodeCache, read_state
from transnormer.models.heads import TransNormerForCausalLM
from transnormer.models.layers import Layer
from transnormer.ops.shapes import check_are_tensors, check_mask_dtype

Forward = Callable[[TransNormerForCausalLM, Tensor, Sequence[FixedState]], Tensor]

# Steps that a GPU may be ahead of the host: it has work while the host shows a token, a flush of the terminal included.
# What it computes behind an end of sequence is thrown away, less than a millisecond.
_STEPS_AHEAD = 4


class Decoder:
    """Decoder of `batch_size` sequences: `prefill(prompts)`, then `stream(count)` or `generate(count)`, repeatedly.

    Prompts are token ids [B, T], padded on the left; `generate` gives [B, count] new ones, `stream` [B] at a time.

    Decodes greedily, or with a `sampling` from torch's global generator (torch.manual_seed repeats a sequence). On CUDA
    the step of a model whose state has a constant size is recorded once and replayed; a cache that grows (`max_context`
    tokens at most) is read at another length each time, and stepped eagerly.

    `compiled` fuses the small kernels of a recorded step. It is off unless asked for, here and in both commands:
    compiling takes tens of seconds, what it saves is tens of microseconds a token.

    >>> import torch
    >>> decoder = tn.Decoder(tn.TransNormerForCausalLM(tn.preset("t2-tiny")).eval(), batch_size=2)
    >>> decoder.prefill(torch.zeros(2, 10, dtype=torch.long))
    >>> decoder.generate(5).shape
    torch.Size([2, 5])
    """

    def __init__(
        self,
        model: TransNormerForCausalLM,
        batch_size: int = 1,
        *,
        max_context: int | None = None,
        sampling: Sampling | None = None,
        compiled: bool = False,
    ) -> None:
        growing = _growing_mixers(model)
        for name, number in (("batch_size", batch_size), ("max_context", max_context)):
            if number is not None and number < 1:
                raise ConfigError(f"{name} must be at least 1, got {number}")
        if growing and max_context is None:
            raise ConfigError(
                f"the state of {', '.join(growing)} grows with the sequence, so its capacity must be known beforehand",
                "pass max_context=, the number of tokens of prompt and continuation together",
            )
        self.model = model.eval()
        self.sampling = sampling
        self.compiled = compiled
        self.growing = bool(growing)
        self.capacity = min(
            max_context if growing and max_context else sys.maxsize,
            model.config.max_position_embeddings if model.config.position_embedding == "learned" else sys.maxsize,
        )
        # Tokens that the state has taken in, on the host and on the device; None: there is no sequence yet.
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
        """Capture the step as a CUDA graph; the sequence so far is lost.

        A growing cache is then read as far as it is filled now, at every replay: good for measuring that length only.
        """
        forward = torch.compile(next_logits, fullgraph=True) if self.compiled else next_logits
        with torch.cuda.device(self.length.device):  # a graph is recorded on the current device
            self._replay = capture(functools.partial(self._step, forward))

    @torch.no_grad()
    def prefill(self, prompt_ids: Tensor, attention_mask: Tensor | None = None) -> None:
        """Begin new sequences with `prompt_ids` [B, T], padded on the left where `attention_mask` [B, T] is 0.

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

    def stream(self, count: int) -> Iterator[Tensor]:
        """The next `count` tokens of each sequence, one [B] on the CPU after the other.

        On CUDA the next steps run while a token is looked at: whoever stops early begins anew with `prefill`.
        """
        if count < 1:
            raise ConfigError(f"count must be at least 1, got {count}")
        if self.seen is None:
            raise ConfigError("the decoder has no sequence to continue", "call prefill(prompt_ids) first")
        fitting = min(count, self.capacity - self.seen)
        ahead = _STEPS_AHEAD if self.token.is_cuda else 0
        on_their_way: deque[Callable[[], Tensor]] = deque()
        for _ in range(fitting):
            self._replay() if self._replay is not None else self._step(next_logits)
            self.seen += 1
            on_their_way.append(_copied_to_host(self.token))
            if len(on_their_way) > ahead:
                yield on_their_way.popleft()()
        while on_their_way:
            yield on_their_way.popleft()()
        if fitting < count:
            raise ConfigError(
                f"the sequence has {self.seen} tokens, which is its capacity",
                "raise max_context, or the model's max_position_embeddings where its positions are learned",
            )

    def generate(self, count: int) -> Tensor:
        """The next `count` tokens of each sequence [B, count], on the CPU."""
        return torch.stack(list(self.stream(count)), dim=1)

    @torch.no_grad()
    def _step(self, forward: Forward) -> None:
        """Take the newest token in and choose the next."""
        logits = forward(self.model, self.token, self._states_in_use())
        if self.sampling is None:
            torch.argmax(logits, dim=-1, keepdim=True, out=self.token)
        else:
            self.sampling.sample(logits, out=self.token)
        self.length += 1

    def _states_in_use(self) -> list[FixedState]:
        """The states, of a growing one only the slots of the tokens so far and of the one to come."""
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
        if prompt_ids.shape[1] > self.capacity:
            raise ConfigError(
                f"a prompt of {prompt_ids.shape[1]} tokens, but the capacity is {self.capacity}",
                "shorten it, or raise max_context, or max_position_embeddings where positions are learned",
            )
        if attention_mask is None:
            return torch.ones_like(prompt_ids, dtype=torch.bool)
        check_are_tensors("Decoder", attention_mask=attention_mask)
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
                "a model whose state grows with the sequence decodes prompts of one length only",
                "decode them one by one, or with model.generate",
            )
        return mask


def _copied_to_host(token: Tensor) -> Callable[[], Tensor]:
    """Begin to copy token [B, 1] to the CPU; what is returned waits for it alone, and gives [B]."""
    host = torch.empty(token.shape, dtype=token.dtype, pin_memory=token.is_cuda)
    host.copy_(token, non_blocking=token.is_cuda)
    arrived = None
    if token.is_cuda:
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(token.device))

    def wait() -> Tensor:
        if arrived is not None:
            arrived.synchronize()
        return host[:, 0]

    return wait


def has_fixed_state(model: object) -> bool:
    """Whether a model decodes on a state of constant size, one CUDA graph a token."""
    if not isinstance(model, TransNormerForCausalLM):
        return False
    return all(mixer_class(name).traits.recurrent and _can_step(name) for name in model.config.mixers or ())


def next_logits(model: TransNormerForCausalLM, token: Tensor, states: Sequence[FixedState]) -> Tensor:
    """Logits [B, V] of the token after `token` [B, 1], which the states take in."""
    return model.lm_head(model.model.step(token, states)[:, 0])


def fixed_states(model: TransNormerForCausalLM, length: Tensor, capacity: int) -> list[FixedState]:
    """The empty state of each layer, on the device of `length` [B], for `capacity` tokens where it grows."""
    return [mixer.fixed_state(length, capacity, model.dtype) for mixer in _mixers(model)]


def _mixers(model: TransNormerForCausalLM) -> list[Mixer]:
    return [cast(Layer, layer).mixer for layer in model.model.layers]


def _growing_mixers(model: object) -> list[str]:
    """The mixers of a model whose state grows with the sequence; an error where one has no step."""
    if not isinstance(model, TransNormerForCausalLM):
        raise ConfigError(f"{type(model).__name__} does not continue sequences", "give a TransNormerForCausalLM")
    assert model.config.mixers is not None
    used = sorted(set(model.config.mixers))
    for name in used:
        if not _can_step(name):
            able = [other for other in list_mixers() if _can_step(other)]
            raise ConfigError(
                f"{name} cannot decode on a state of fixed shape",
                f"use model.generate, or one of those that can: {', '.join(able)}",
            )
    return [name for name in used if not mixer_class(name).traits.recurrent]


def _can_step(mixer: str) -> bool:
    return mixer_class(mixer).step is not Mixer.step
