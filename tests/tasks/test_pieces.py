"""Pieces of batches: put together they are the batch, and they are learned as the whole would be."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_run import tiny_config, tiny_store

from transnormer.mixers.components.context import Context
from transnormer.tasks import token_windows
from transnormer.tasks.causal_lm import CausalLM
from transnormer.tasks.masked_lm import MaskedLM
from transnormer.tasks.pieces import Pieces


def context(rank: int) -> Context:
    return Context(rank, 4, group=None)  # type: ignore[arg-type]  # nothing here communicates


@pytest.mark.parametrize("kind", [CausalLM, MaskedLM])
def test_all_pieces_together_are_the_batch(tmp_path: Path, kind: type[CausalLM] | type[MaskedLM]) -> None:
    task = kind(tiny_config(tiny_store(tmp_path), task=kind.name))
    feeds = [Pieces(task, context(rank)) for rank in range(4)]
    pieces, whole = [feed.feed(range(3, 6)) for feed in feeds], task.train_batch(range(3, 6))
    for name, values in whole.items():
        assert torch.equal(torch.cat([piece[name] for piece in pieces], dim=1), values)
    counted = [(feed.targets(piece), feed.tokens(piece)) for feed, piece in zip(feeds, pieces, strict=True)]
    assert [sum(counts) for counts in zip(*counted, strict=True)] == [task.targets_in(whole), task.tokens_in(whole)]


@pytest.mark.parametrize(("limit", "has_logits"), [(0, True), (-1, False)])
def test_whether_there_are_logits_is_asked_of_whole_sequences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, has_logits: bool
) -> None:
    """They are shared to save memory: where one process would not hold all logits, none holds its own."""
    task = CausalLM(tiny_config(tiny_store(tmp_path)))
    monkeypatch.setattr(token_windows, "_MOST_LOGITS", 2 * 32 * task.store.vocab_size + limit)
    calls: list[dict[str, Any]] = []

    def model(**arguments: Any) -> SimpleNamespace:
        calls.append(arguments)
        return SimpleNamespace(loss=torch.zeros(()), logits=torch.zeros(2, 8, task.store.vocab_size))

    feeds = Pieces(task, context(1))
    feeds.loss_sum(model, feeds.feed(range(2)))  # type: ignore[arg-type]
    assert [("targets" not in call, call["context"]) for call in calls] == [(has_logits, context(1))]
