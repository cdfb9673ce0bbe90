"""An evaluation: the sums of a split, batch by batch on the device, without logits of a whole vocabulary in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from transnormer.config.schema import TrainSection
from transnormer.step.execution import Execution
from transnormer.step.training import fill
from transnormer.tasks.contract import Batch, Feeds

# Batches that are as large as that of a training pass leave half of the memory idle, and larger kernels waste less.
_TRAINING_BATCHES = 2
Shapes = tuple[tuple[str, torch.Size], ...]


def evaluation_batch(train: TrainSection) -> int:
    """Sequences that are scored at once: `train.eval_batch_size`, or twice what a training pass takes."""
    return train.eval_batch_size or _TRAINING_BATCHES * (train.micro_batch_size or train.batch_size)


class Evaluation:
    """Scores splits with the model's current weights.

    What is compiled or recorded serves batches of one shape; the last batch of a split, if it is smaller, is scored op
    by op. `any_rank` (whether a flag is set on some rank) is for weights in shards, which all processes gather at once.
    """

    def __init__(
        self,
        model: nn.Module,
        feeds: Feeds,
        train: TrainSection,
        execution: Execution,
        any_rank: Callable[[bool], bool] | None = None,
    ) -> None:
        self.model, self.feeds, self.execution, self._any_rank = model, feeds, execution, any_rank
        self._batch_size = evaluation_batch(train)
        self._recorded: dict[str, tuple[Shapes, Batch, Callable[[], Tensor]]] = {}

    def sums(self, split: str, rank: int = 0, world_size: int = 1) -> dict[str, float]:
        """This process's share of a split, added up; `Task.metrics` makes scores of all processes' sums."""
        was_training = self.model.training
        self.model.eval()
        totals = torch.zeros(len(self.feeds.sums), dtype=torch.float64, device=self.execution.device)
        try:
            self.feeds.load(split)
            for feed, counts in self._passes(split, rank, world_size):
                scores = self._score(split, feed)
                if counts:
                    totals += scores
        finally:
            self.model.train(was_training)
        return self.feeds.complete(split, dict(zip(self.feeds.sums, totals.tolist(), strict=True)))

    def _passes(self, split: str, rank: int, world_size: int) -> Iterator[tuple[Batch, bool]]:
        """The batches of this process, and whether each counts: who has none left goes along with the others."""
        feeds = iter(self.feeds.eval_feeds(split, self._batch_size, rank, world_size))
        if self._any_rank is None:
            yield from ((feed, True) for feed in feeds)
            return
        idle = next(iter(self.feeds.eval_feeds(split, 1, 0, 1)))
        feed = next(feeds, None)
        while self._any_rank(feed is not None):
            yield (feed, True) if feed is not None else (idle, False)
            feed = next(feeds, None)

    def _score(self, split: str, feed: Batch) -> Tensor:
        shapes = tuple((name, values.shape) for name, values in feed.items())
        if self.execution.name != "eager" and split not in self._recorded:
            self._record(split, shapes, feed)
        if split in self._recorded:
            recorded_shapes, static, run = self._recorded[split]
            if shapes == recorded_shapes:
                fill(static, feed)
                return run()
        on_device = {name: values.to(self.execution.device) for name, values in feed.items()}
        return self._eagerly(on_device, split)

    def _record(self, split: str, shapes: Shapes, feed: Batch) -> None:
        """Compile and record the score of batches like this one, the first and largest of its split."""
        static = {name: values.to(self.execution.device) for name, values in feed.items()}
        compiled = self.execution.compile(lambda: self.feeds.score(self.model, static, split))

        def run() -> Tensor:
            with torch.no_grad(), self.execution.autocast():
                return compiled()

        self._recorded[split] = shapes, static, self.execution.prepare(run)

    def _eagerly(self, batch: Batch, split: str) -> Tensor:
        with torch.no_grad(), self.execution.autocast():
            return self.feeds.score(self.model, batch, split)
