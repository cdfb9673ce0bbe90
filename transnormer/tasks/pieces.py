"""Feeds of processes that share sequences: each is sent its piece, inputs and targets alike."""

from __future__ import annotations

import torch
from torch import Tensor

from transnormer.mixers.components.context import Context
from transnormer.tasks.contract import Batch, Feeds
from transnormer.tasks.token_windows import TokenWindowTask


class Pieces(Feeds):
    """Training batches [B, T] cut along T. The target of a piece's last token is the next piece's first.

    Evaluations are not cut: they keep no activations, and their windows need not have a length that can be.
    """

    def __init__(self, task: TokenWindowTask, context: Context) -> None:
        super().__init__(task)
        self._windows, self._context = task, context

    def feed(self, positions: range) -> Batch:
        batch = super().feed(positions)
        return {name: x.chunk(self._context.size, dim=1)[self._context.rank].clone() for name, x in batch.items()}

    def loss_sum(self, model: torch.nn.Module, feed: Batch) -> Tensor:
        return self._windows.loss_sum(model, feed, self._context)
