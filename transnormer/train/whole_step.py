"""A training step as a fixed piece of GPU work: batch, loss, gradients, update, without the CPU in between.

Small models finish a kernel faster than Python can start the next one. Here the step reads nothing but tensors that
stay where they are (data, schedule, counters), so it is compiled, recorded once as a CUDA graph and replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from transnormer.config.schema import RunConfig
from transnormer.cuda_graph import capture
from transnormer.tasks.contract import Batch, Feeds, ScoredFeeds, Task
from transnormer.train.flat_adamw import FlatAdamW
from transnormer.train.gradients import Gradients
from transnormer.train.randomness import seed_step
from transnormer.train.schedules import beta1, learning_rate

_WARMUP = 3  # steps before one is recorded; they leave the weights alone
_SCORED_TOGETHER = 2  # batches of an evaluation: without gradients there is room, and larger kernels waste less


class WholeStep:
    """Runs steps in strides. On a CPU it runs the same function step by step, which is how its results are checked.

    A non-finite loss or gradient stops the updates on the device at once; the CPU learns of it at the end of the
    stride.
    """

    def __init__(
        self, model: nn.Module, task: Task, data: Feeds, optimizer: torch.optim.AdamW, config: RunConfig, bf16: bool
    ) -> None:
        self.model, self.task, self.data, self.config = model, task, data, config
        self.device = next(model.parameters()).device
        self._on_gpu, self._bf16 = self.device.type == "cuda", bf16
        self._adamw = FlatAdamW(optimizer, config.optim, compiled=self._on_gpu)
        self._loss = self._compiled(lambda feed: task.loss_sum(model, data.batch(feed)))

        steps = config.train.steps
        rates = [(learning_rate(config.optim, steps, s), beta1(config.optim, steps, s)) for s in range(steps)]
        rates += rates[-1:] * _WARMUP  # a run may be shorter than its warm-up
        self._rates = torch.tensor(rates, dtype=torch.float64, device=self.device)
        self._step = torch.zeros(1, dtype=torch.long, device=self.device)  # updates scheduled so far
        self._go = torch.ones((), dtype=torch.bool, device=self.device)  # false once something was not finite
        self._place = torch.zeros(1, dtype=torch.long, device=self.device)  # steps of this stride so far
        self._history = torch.zeros(max(config.train.log_every, _WARMUP), 2, dtype=torch.float64, device=self.device)
        self._scale = torch.ones((), device=self.device)  # one over the number of targets
        self._train_feed: Batch = {}
        self._recorded: Callable[[], Any] | None = None
        self._recorded_scores: dict[str, tuple[Batch, Callable[[], Tensor]]] = {}

    def adopt(self) -> None:
        """Go on from the weights and the optimizer state that were just loaded or initialised."""
        self._adamw.adopt()

    def record(self) -> Callable[[], Any]:
        """Compile and record the step, on any batch; the weights stay as they are. Returns what replays it."""
        self.data.load("train")
        self.model.train()
        self._train_feed = {name: values.to(self.device) for name, values in self.data.feed(self._positions(0)).items()}
        self._step.zero_()
        self._place.zero_()
        self._go.fill_(False)
        if not self._on_gpu:
            self._recorded = self._train
            return self._recorded
        before = [(buffer, buffer.clone()) for buffer in self.model.buffers()]  # BatchNorm learns without an update
        self._recorded = capture(self._train, warmup=_WARMUP)
        for buffer, value in before:
            buffer.copy_(value)
        return self._recorded

    def advance(self, step: int, batches: Sequence[int]) -> list[Gradients]:
        """Make one step for each batch, up to and including the first whose loss or gradient is not finite."""
        replay = self._recorded or self.record()
        self.model.train()
        self._step.fill_(step)
        self._place.zero_()
        self._go.fill_(True)
        tokens = []
        for place, batch in enumerate(batches):  # while the GPU makes one step, the next batch is put together here
            feed = self.data.feed(self._positions(batch))
            self._send(feed, self._train_feed)
            self._scale.fill_(1 / max(self.data.targets(feed), 1))
            seed_step(self.config.seed, step + place, 0, self.device)
            replay()
            tokens.append(self.data.tokens(feed))
        outcomes = []
        for count, (loss, norm) in zip(tokens, self._history[: len(batches)].tolist(), strict=True):
            outcomes.append(Gradients(loss=loss, norm=norm, tokens=count))
            if not outcomes[-1].finite:
                break
        return outcomes

    def evaluate(self, split: str) -> dict[str, float]:
        """The sums of an evaluation with the current weights."""
        self.model.eval()
        if not isinstance(self.data, ScoredFeeds):
            with torch.no_grad(), self._autocast():
                return self.task.evaluate(self.model, split, self.device)
        totals = torch.zeros(len(self.data.scores), dtype=torch.float64, device=self.device)
        size = self.config.train.eval_batch_size or _SCORED_TOGETHER * self.config.train.batch_size
        for feed in self.data.eval_feeds(split, size):
            static, score = self._recorded_scores.get(split) or self._record_score(self.data, split, feed)
            self._send(feed, static)
            totals += score()
        return dict(zip(self.data.scores, totals.tolist(), strict=True))

    def _train(self) -> None:
        """One step, from tensors to tensors."""
        with self._autocast():
            loss = self._loss(self._train_feed) * self._scale
        gradients = torch.autograd.grad(loss, self._adamw.parameters, allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            norm = self._adamw.clip(gradients)
            self._history.index_copy_(0, self._place, torch.stack([loss.detach(), norm]).double().unsqueeze(0))
            self._go.logical_and_(loss.isfinite() & norm.isfinite())
            rate, first_beta = self._rates.index_select(0, self._step)[0].unbind()
            self._adamw.update(rate, first_beta, self._go)
            self._step.add_(1)
            self._place.add_(1)

    def _record_score(self, data: ScoredFeeds, split: str, feed: Batch) -> tuple[Batch, Callable[[], Tensor]]:
        data.load(split)
        static = {name: values.to(self.device) for name, values in feed.items()}
        compiled = self._compiled(lambda: data.score(self.model, static, split))

        def score() -> Tensor:
            with torch.no_grad(), self._autocast():
                return compiled()

        self._recorded_scores[split] = static, capture(score) if self._on_gpu else score
        return self._recorded_scores[split]

    def _compiled(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return torch.compile(function, fullgraph=True, dynamic=False) if self._on_gpu else function

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16) if self._bf16 else nullcontext()

    def _positions(self, batch: int) -> range:
        size = self.config.train.batch_size
        return range(batch * size, (batch + 1) * size)

    def _send(self, feed: Batch, static: Batch) -> None:
        """Copy a feed into the tensors that a recording reads, after what is running there."""
        for name, values in feed.items():
            static[name].copy_(values.pin_memory() if self._on_gpu else values, non_blocking=True)
