"""Tokens per second of decoding over the context: a state of constant size against a cache that grows.

What is timed is `Decoder.stream`, greedy, each token read by the host: the loop of `transnormer generate`. Weights are
random, and so is what the models remember: a step takes as long on any numbers. Before the first of the timed steps
there are context − 1 tokens in the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transnormer.bench.ops import GateFailed
from transnormer.bench.timing import median_seconds
from transnormer.errors import ConfigError
from transnormer.generate.decoder import Decoder, fixed_states
from transnormer.generate.load import decode_dtype
from transnormer.models.heads import TransNormerForCausalLM
from transnormer.models.presets import preset

VOCABULARY = 50_304  # of the language models, as in `bench speed`; other presets keep their own
# Tokens between two looks at the clock, by device.
_STEPS = {"cuda": 128, "cpu": 1}
_MEMORY_OF_THE_HOST = Path("/proc/meminfo")
# How far below the best a chosen token's logit may lie, in standard deviations of the logits: sums in another order.
_TIE = 1e-3


def measure_decode(
    presets: Sequence[str], contexts: Sequence[int], batches: Sequence[int], device: torch.device, *, compiled: bool
) -> Iterator[dict[str, Any]]:
    """One row per batch, preset and context, as they are measured; one that does not fit into memory says so."""
    if len(set(presets)) != len(presets):
        raise ConfigError(f"{presets[0]} is to be compared with itself", "name two different presets")
    for name in presets:
        _check(name, device, compiled)
    longest = max(contexts) + _STEPS[device.type]
    models = {name: _on(device, build(name, max_position_embeddings=longest)) for name in presets}
    for batch in batches:
        for name, model in models.items():
            torch.compiler.reset()
            parameters = sum(p.numel() for p in model.parameters())
            for context in contexts:
                row = {"preset": name, "parameters": parameters, "batch": batch, "context": context}
                yield row | _measure(model, batch, context, compiled)
                if device.type == "cuda":
                    torch.cuda.empty_cache()


def dtype_on(device: torch.device) -> torch.dtype:
    """What a float32 model is decoded in."""
    dtype = decode_dtype(device)
    return dtype if isinstance(dtype, torch.dtype) else torch.float32


def _on(device: torch.device, model: TransNormerForCausalLM) -> TransNormerForCausalLM:
    """The model as `transnormer generate` would load it."""
    model.to(device, dtype_on(device))
    for name, module in model.named_modules():
        if name.rpartition(".")[-1] in model._keep_in_fp32_modules_strict:
            module.float()
    return model


def build(name: str, **overrides: Any) -> TransNormerForCausalLM:
    """The model of a preset, with the same random weights each time."""
    if name.endswith("-lm"):
        overrides = {"vocab_size": VOCABULARY, **overrides}
    config = preset(name, **overrides)
    if not config.causal:
        raise ConfigError(f"preset '{name}' is bidirectional: it does not write text", "take one such as t2-lm")
    torch.manual_seed(0)
    return TransNormerForCausalLM(config)


def _measure(model: TransNormerForCausalLM, batch: int, context: int, compiled: bool) -> dict[str, Any]:
    probe = fixed_states(model, torch.zeros(1, dtype=torch.long, device="meta"), context)
    row: dict[str, Any] = {"state_bytes_per_sequence": sum(state.nbytes for state in probe)}
    if model.device.type == "cpu" and batch * row["state_bytes_per_sequence"] > _free_bytes_of_the_host():
        return {**row, "out_of_memory": True}
    try:
        steps = _STEPS[model.device.type]
        decoder = Decoder(model, batch, max_context=context + steps, compiled=compiled)
        _fill(decoder, context - 1)
        seconds = median_seconds(_timed_burst(decoder, steps), model.device) / steps
    except torch.OutOfMemoryError:
        return {**row, "out_of_memory": True}
    return {**row, "seconds_per_step": seconds, "tokens_per_second": batch / seconds}


def _fill(decoder: Decoder, tokens: int) -> None:
    """Leave the decoder as a sequence of `tokens` tokens would."""
    decoder.seen = tokens
    decoder.length.fill_(tokens)
    decoder.token.random_(decoder.model.config.vocab_size)
    for state in decoder.states:
        for name in state.keys() - {"length"}:
            state[name].normal_()


def _timed_burst(decoder: Decoder, steps: int) -> Callable[[], object]:
    """Steps that follow each other as in generation, from the present length on, again and again.

    On a GPU a growing cache is read at the present length in each, as one graph: eager steps would be several times
    slower, and it is the comparison's.
    """
    assert decoder.seen is not None
    tokens = decoder.seen
    if decoder.growing and decoder.length.is_cuda:
        decoder.record()

    def burst() -> None:
        decoder.seen = tokens
        decoder.length.fill_(tokens)
        for _ in decoder.stream(steps):
            pass

    return burst


def _free_bytes_of_the_host() -> float:
    """A GPU refuses what does not fit; a host lends it and is brought down."""
    if not _MEMORY_OF_THE_HOST.exists():
        return float("inf")
    lines = _MEMORY_OF_THE_HOST.read_text().splitlines()
    return int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) * 1024


@torch.no_grad()
def _check(name: str, device: torch.device, compiled: bool) -> None:
    """The gate: in float32 a small model of the preset decodes what its parallel forward finds best."""
    # Tied weights would let a random model repeat its last token for ever.
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 256}
    model = build(name, **small, tie_word_embeddings=False).to(device).eval()
    prompt = torch.randint(0, 256, (2, 100), generator=torch.Generator().manual_seed(0)).to(device)
    decoder = Decoder(model, 2, max_context=200, compiled=compiled)
    decoder.prefill(prompt)
    tokens = decoder.generate(80).to(device)
    logits = model(torch.cat([prompt, tokens[:, :-1]], dim=1)).logits[:, prompt.shape[1] - 1 :]
    _require_greedy(name, tokens, logits)
    # What is timed, if that is another form of the step: one that is recorded at this very length.
    decoder.prefill(prompt)
    burst = _timed_burst(decoder, 1)
    decoder.prefill(prompt)
    burst()
    _require_greedy(name, decoder.token, logits[:, :1])


def _require_greedy(name: str, tokens: Tensor, logits: Tensor) -> None:
    """Tokens [B, T] must have the largest of logits [B, T, V]."""
    chosen = logits.gather(-1, tokens[..., None])[..., 0]
    gap = float(((logits.amax(dim=-1) - chosen) / logits.std(dim=-1)).max())
    if not gap <= _TIE:
        raise GateFailed(f"{name}: a decoded token is not the best of the parallel forward, by {gap:.2e} deviations")
