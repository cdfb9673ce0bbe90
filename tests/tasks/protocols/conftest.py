"""Streams of random tokens, small models in float64, and their losses by brute force."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch

from transnormer.data.store import SplitInfo
from transnormer.data.streams import TextStream
from transnormer.models.heads import TransNormerForCausalLM
from transnormer.models.presets import preset

VOCABULARY = 11
CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def stream_of() -> Callable[..., TextStream]:
    """stream_of(tokens) or stream_of(ids=[...])."""

    def make(tokens: int = 0, ids: Iterable[int] | None = None, seed: int = 0) -> TextStream:
        drawn = np.random.default_rng(seed).integers(0, VOCABULARY, size=tokens) if ids is None else np.array(ids)
        return TextStream(drawn.astype(np.int64), SplitInfo(len(drawn), 0, 0))

    return make


@pytest.fixture(scope="session")
def small_model() -> Callable[..., TransNormerForCausalLM]:
    """A model of two layers whose weights are large enough for every token of the context to matter."""

    def make(method: str, **fields: Any) -> TransNormerForCausalLM:
        options = {"diag": {"block_size": 8}, "flash": {"chunk_size": 8}}
        used = {"t1": ["diag"], "t2": ["diag"], "flash": ["flash"]}.get(method, [])
        torch.manual_seed(0)
        config = preset(
            f"{method}-tiny",
            vocab_size=VOCABULARY,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=1 if method == "flash" else 2,
            mixer_options={name: options[name] for name in used},
            **fields,
        )
        model = TransNormerForCausalLM(config).double().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter *= 1.5
        return model

    return make


@torch.no_grad()
def loss_from(model: TransNormerForCausalLM, ids: np.ndarray, start: int, target: int) -> float:
    """The loss of token `target`, predicted in one forward from tokens start .. target - 1 and nothing else."""
    logits = model(torch.from_numpy(ids[start:target])[None]).logits[0, -1]
    return -logits.log_softmax(-1)[int(ids[target])].item()


@pytest.fixture(scope="session")
def brute_force() -> Callable[..., float]:
    return loss_from


@pytest.fixture(scope="session")
def uniform_model(small_model: Callable) -> TransNormerForCausalLM:
    """Every token is as likely as any other."""
    model = small_model("t2")
    with torch.no_grad():
        model.lm_head.weight.zero_()
    return model


@pytest.fixture(scope="session")
def bigram_model(small_model: Callable) -> tuple[TransNormerForCausalLM, torch.Tensor]:
    """A real model whose layers pass on what comes in, and its table of log probabilities [V, V]."""
    model = small_model("t2", tie_word_embeddings=False, position_embedding="none", scale_embedding=False)
    table = torch.randn(VOCABULARY, VOCABULARY, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "o_proj.bias", "down_proj.weight", "down_proj.bias")):
                parameter.zero_()
        # One-hot embeddings, which the last norm scales to a square mean of one.
        model.model.embed_tokens.weight.copy_(torch.eye(VOCABULARY, 16))
        model.lm_head.weight.zero_()
        model.lm_head.weight[:, :VOCABULARY] = table.T / 4
    return model, table.log_softmax(-1)
