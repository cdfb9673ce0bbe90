"""The training step: loss, gradients, clipping, AdamW, as one function from tensors to tensors.

Small models finish a kernel faster than Python can start the next one, and large ones should not wait for Python
either. So the step reads nothing but tensors that stay where they are (batches, schedule, counters): eager PyTorch runs
it op by op, a compiler compiles it, a GPU records it once and replays it, all of them the same function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from transnormer.config.schema import RunConfig
from transnormer.models.backbone import TransNormerPreTrainedModel
from transnormer.step.adamw import AdamW
from transnormer.step.execution import RUNS_BEFORE_RECORDING, Execution
from transnormer.step.layer_groups import layer_groups, membership
from transnormer.step.schedules import beta1, learning_rate
from transnormer.step.shards import local
from transnormer.tasks.contract import Batch, Feeds


@dataclass(frozen=True)
class StepOutcome:
    """What is known of a step: enough to decide whether its update counts, and for a line of the journal."""

    loss: float
    grad_norm: float
    tokens: int
    layer_grad_norms: dict[str, float] = field(default_factory=dict)  # with `train.log_layer_gradients`

    @property
    def finite(self) -> bool:
        """Whether the update left the weights finite."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


class Alone:
    """The one process of a run; `train.ranks.Ranks` is several."""

    rank, world_size = 0, 1

    def share_of(self, total: int) -> range:
        """This process's slice of `total` items."""
        return range(total)

    def sum_floats(self, values: list[float]) -> list[float]:
        """The elementwise sum over processes."""
        return values

    def sum_in_place(self, values: Tensor) -> None:
        """Replace values by their sum over processes."""

    def share_buffers(self, model: nn.Module) -> None:
        """Give all processes the buffers of the first."""


class TrainingStep:
    """Makes steps on batches by number. Nothing here waits for the device but the end of `advance`.

    A non-finite loss or gradient stops the updates on the device at once; the CPU learns of it when `advance` ends.
    """

    def __init__(
        self, model: nn.Module, feeds: Feeds, config: RunConfig, execution: Execution, ranks: Alone | None = None
    ) -> None:
        self.model, self.feeds, self.config, self.execution = model, feeds, config, execution
        self.ranks = ranks or Alone()
        if config.train.gradient_checkpointing:
            # The other kind of PyTorch's checkpoints knows `backward` alone, not `autograd.grad`.
            cast(TransNormerPreTrainedModel, model).gradient_checkpointing_enable({"use_reentrant": False})
        self.optimizer = AdamW(model, config.optim, execution)
        self.loss = execution.compile(lambda feed: feeds.loss_sum(model, feed))
        device = execution.device
        self._go = torch.ones((), dtype=torch.bool, device=device)  # false once something was not finite
        self._index = torch.zeros(1, dtype=torch.long, device=device)  # steps of this call of `advance` so far
        self._groups: dict[str, list[int]] = {}
        if config.train.log_layer_gradients:
            self._groups = layer_groups([self.optimizer.names[parameter] for parameter in self.optimizer.parameters])
            self._membership = membership(self._groups, device)
        length = max(min(config.train.log_every, config.train.steps), RUNS_BEFORE_RECORDING)
        self._rates = torch.zeros(length, 2, dtype=torch.float64, device=device)  # learning rate and beta1, likewise
        self._history = torch.zeros(length, 2 + len(self._groups), dtype=torch.float64, device=device)
        self._scale = torch.ones((), device=device)  # one over the number of targets of the global batch
        self._sharded = config.train.parallel == "fsdp"
        self._micro_batches: list[Batch] = []
        self._ahead: tuple[int, list[Batch]] = (-1, [])  # the number of the batch that is probably next, and itself
        self._run: Callable[[], object] | None = None

    def prepare(self) -> None:
        """Compile and record the step, on any batch; the weights stay as they are. `advance` does it otherwise."""
        self._run = self._train
        self.feeds.load("train")
        if self.execution.name == "eager":
            return
        self.model.train()
        self._micro_batches = [_to(feed, self.execution.device) for feed in self._feeds_of(0)]
        self._index.zero_()
        self._go.fill_(False)
        before = [(buffer, buffer.clone()) for buffer in self.model.buffers()]  # BatchNorm learns without an update
        self._run = self.execution.prepare(self._train)
        for buffer, value in before:
            buffer.copy_(value)

    def advance(self, step: int, batches: Sequence[int]) -> list[StepOutcome]:
        """Make one step for each batch, up to and including the first whose loss or gradient is not finite.

        `step` is the number of steps before the first of them; at most `train.log_every` batches at once.
        """
        if self._run is None:
            self.prepare()
        assert self._run is not None
        self.model.train()
        optim, steps = self.config.optim, self.config.train.steps
        rates = [(learning_rate(optim, steps, s), beta1(optim, steps, s)) for s in range(step, step + len(batches))]
        self._rates[: len(rates)].copy_(torch.tensor(rates, dtype=torch.float64))
        self._index.zero_()
        self._go.fill_(True)
        tokens = []
        for index, batch in enumerate(batches):  # while the GPU makes one step, the next batch is put together here
            feeds = self._ahead[1] if self._ahead[0] == batch else self._feeds_of(batch)
            targets, count = self.ranks.sum_floats(
                [float(sum(map(self.feeds.targets, feeds))), float(sum(map(self.feeds.tokens, feeds)))]
            )
            self._send(feeds)
            self._scale.fill_(1 / max(targets, 1.0))  # dynamic masking may leave a small batch without any target
            seed_step(self.config.seed, step + index, self.ranks.rank, self.execution.device)
            self.ranks.share_buffers(self.model)
            self._run()
            tokens.append(int(count))
        if self.execution.records:  # put together while the GPU still works
            self._ahead = (batches[-1] + 1, self._feeds_of(batches[-1] + 1))
        outcomes = []
        for count, (loss, norm, *norms) in zip(tokens, self._history[: len(batches)].tolist(), strict=True):
            outcomes.append(StepOutcome(loss, norm, count, dict(zip(self._groups, norms, strict=True))))
            if not outcomes[-1].finite:
                break
        return outcomes

    def _train(self) -> None:
        """One step, from tensors to tensors. Gradients are of the mean over all targets of the global batch."""
        losses: list[Tensor] = []
        for feed, counts in self._passes():
            with self.execution.autocast():
                loss = self.loss(feed) * (self._scale if counts else 0.0)
            gradients = self._gradients(loss)
            with torch.no_grad():
                self.optimizer.take(gradients, add=bool(losses))
            losses.append(loss.detach())
            del loss, gradients  # before the next micro-batch needs the memory
        with torch.no_grad():
            total = losses[0] if len(losses) == 1 else torch.stack(losses).sum()
            if not self._sharded:
                self.ranks.sum_in_place(self.optimizer.gradients)
            self.ranks.sum_in_place(total)
            norm = self._over_shards(self.optimizer.norm())
            facts = torch.stack([total, norm])
            if self._groups:
                facts = torch.cat([facts, self._over_shards(self.optimizer.group_norms(self._membership))])
            self._history.index_copy_(0, self._index, facts.double().unsqueeze(0))
            self._go.logical_and_(total.isfinite() & norm.isfinite())
            rate, first_beta = self._rates.index_select(0, self._index)[0].unbind()
            self.optimizer.update(rate, first_beta, norm, self._go)
            self._index.add_(1)

    def _passes(self) -> Iterator[tuple[Batch, bool]]:
        """The micro-batches, and whether each counts.

        Weights in shards are gathered from all processes at every pass: one that has fewer micro-batches than another
        repeats its last, for nothing. A BatchNorm must not learn from that.
        """
        for feed in self._micro_batches:
            yield feed, True
        if not self._sharded:
            return
        train = self.config.train
        largest_share = math.ceil(train.batch_size / self.ranks.world_size)
        passes = math.ceil(largest_share / (train.micro_batch_size or largest_share))
        for _ in range(passes - len(self._micro_batches)):
            before = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
            yield self._micro_batches[-1], False
            for buffer, value in before:
                buffer.copy_(value)

    def _gradients(self, loss: Tensor) -> Sequence[Tensor]:
        """Those of this process's loss; where weights are in shards, the sum of all processes', of the rows here."""
        parameters = self.optimizer.parameters
        if not self._sharded:
            return torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        (loss * self.ranks.world_size).backward()  # FSDP takes the mean over processes; gloo can scale no sum
        gradients = [
            torch.zeros_like(local(parameter)) if parameter.grad is None else local(parameter.grad)
            for parameter in parameters
        ]
        for parameter in parameters:
            parameter.grad = None
        return gradients

    def _over_shards(self, norms: Tensor) -> Tensor:
        """The norms of vectors of which each process has a part."""
        if not self._sharded:
            return norms
        squares = norms.square()
        self.ranks.sum_in_place(squares)
        return squares.sqrt()

    def _feeds_of(self, batch: int) -> list[Batch]:
        """This process's share of a global batch, cut into what fits one forward pass, on the CPU."""
        size = self.config.train.batch_size
        share = self.ranks.share_of(size)
        positions = range(batch * size + share.start, batch * size + share.stop)
        micro = self.config.train.micro_batch_size or len(positions)
        return [self.feeds.feed(positions[first : first + micro]) for first in range(0, len(positions), micro)]

    def _send(self, feeds: Sequence[Batch]) -> None:
        """Bring feeds to the device; into the tensors that a recording reads, after what is running there."""
        if self.execution.name != "cuda_graph":
            self._micro_batches = [_to(feed, self.execution.device) for feed in feeds]
            return
        for feed, static in zip(feeds, self._micro_batches, strict=True):
            fill(static, feed)


def fill(static: Batch, feed: Batch) -> None:
    """Copy a feed into tensors that stay where they are, without waiting for it."""
    for name, values in feed.items():
        on_gpu = static[name].is_cuda
        static[name].copy_(values.pin_memory() if on_gpu else values, non_blocking=on_gpu)


def step_seed(seed: int, step: int, rank: int) -> int:
    """The seed of all that is random in a step on a rank, such as dropout: no generator has to be restored."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0])


def seed_step(seed: int, step: int, rank: int, device: torch.device) -> None:
    """Seed torch's generators for one step, on the CPU and on the device in use.

    Not torch.manual_seed, which queues a call for every device that is not in use: a millisecond a step.
    """
    value = step_seed(seed, step, rank)
    torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        torch.cuda.manual_seed(value)


def _to(feed: Batch, device: torch.device) -> Batch:
    return {name: values.to(device, non_blocking=True) for name, values in feed.items()}
