"""One rank's share of learning: the model, its optimizer, the gradients of a step, the update, an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model, save_file
from torch import Tensor, nn

from transnormer.config.schema import RunConfig
from transnormer.errors import CheckpointError, ConfigError, TransNormerError
from transnormer.models.saving import follow_umask, save_quietly
from transnormer.tasks.registry import build_task
from transnormer.train.gradients import Gradients
from transnormer.train.guards import all_finite
from transnormer.train.optim import (
    build_adamw,
    clip_gradients,
    follow_schedule,
    load_optimizer_tensors,
    optimizer_tensors,
)
from transnormer.train.randomness import seed_step
from transnormer.train.ranks import Ranks
from transnormer.train.speed import choose_execution
from transnormer.train.whole_step import WholeStep

WEIGHTS, OPTIMIZER = "model.safetensors", "optimizer.safetensors"


class Learner:
    """The part of a run that computes; it neither counts steps nor writes to the run folder by itself."""

    def __init__(self, config: RunConfig, ranks: Ranks) -> None:
        if config.train.batch_size < ranks.world_size:
            raise ConfigError(
                f"train.batch_size ({config.train.batch_size}) is smaller than the number of processes",
                hint=f"set train.batch_size to at least {ranks.world_size}",
            )
        self.config, self.ranks = config, ranks
        self.task = build_task(config)
        self.execution = choose_execution(config.train, ranks)
        self.model = self._seeded_model()
        self._wrapped = ranks.wrap(self.model) if self.execution != "cuda_graph" else self.model.to(ranks.device)
        if self.execution == "compile":
            self.model.compile()
        self.optimizer = build_adamw(self.model, config.optim)
        self._whole: WholeStep | None = None
        if self.execution == "cuda_graph":
            feeds = self.task.feeds(ranks.device)
            self._whole = WholeStep(self.model, self.task, feeds, self.optimizer, config, bf16=ranks.uses_bf16)
            self._whole.adopt()

    @property
    def strides(self) -> bool:
        """Whether `advance` is best given as many batches as there are before something else is due."""
        return self._whole is not None

    def warm_up(self) -> None:
        """Compile what is to be compiled, so that it is not counted as training."""
        if self._whole is None:
            return
        try:
            self._whole.record()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise TransNormerError(
                f"the step could not be compiled and recorded as a CUDA graph: {first_line}",
                hint="train.execution=eager, in a new run, makes its steps op by op; see also `transnormer doctor`",
            ) from error

    def advance(self, step: int, batches: Sequence[int]) -> list[Gradients]:
        """Steps on these batches, from the step-th on; ends with the first that is not finite, which is not updated.

        One step at a time but for a learner that strides.
        """
        if self._whole:
            return self._whole.advance(step, batches)
        gradients = self.gradients(step, batches[0])
        if gradients.finite:
            self.update(step)
        return [gradients]

    def gradients(self, step: int, batch_index: int) -> Gradients:
        """Gradients of the mean loss over all targets of a global batch, summed over micro-batches and ranks.

        DDP averages over ranks and micro-batches hold unequal numbers of targets, so the targets are counted first and
        each sum of losses is scaled by world_size / targets.
        """
        micro_batches = self.micro_batches(batch_index)
        targets, tokens = self.ranks.sum_floats(
            [
                float(sum(self.task.targets_in(batch) for batch in micro_batches)),
                float(sum(self.task.tokens_in(batch) for batch in micro_batches)),
            ]
        )
        targets = max(targets, 1.0)  # dynamic masking may leave a small batch without any target
        seed_step(self.config.seed, step, self.ranks.rank, self.ranks.device)
        self.model.train()
        self.optimizer.zero_grad()
        total = torch.zeros((), dtype=torch.float64, device=self.ranks.device)
        for number, batch in enumerate(micro_batches, start=1):
            with self._synchronised(number == len(micro_batches)):
                loss = self.task.loss_sum(self._wrapped, _to(batch, self.ranks.device))
                self.ranks.accelerator.backward(loss * (self.ranks.world_size / targets))
            total += loss.detach()
        norm = clip_gradients(self.model.parameters(), self.config.optim)
        loss_sum, norm_value = torch.stack([self.ranks.sum(total), norm.double()]).tolist()
        return Gradients(loss=loss_sum / targets, norm=norm_value, tokens=int(tokens))

    def update(self, step: int) -> None:
        """The optimizer's step on the gradients at hand."""
        follow_schedule(self.optimizer, self.config.optim, self.config.train.steps, step)
        self.optimizer.step()

    def micro_batches(self, batch_index: int) -> list[dict[str, Tensor]]:
        """This rank's slice of a global batch, cut into pieces that fit one forward pass."""
        batch_size = self.config.train.batch_size
        share = self.ranks.share_of(batch_size)
        positions = range(batch_index * batch_size + share.start, batch_index * batch_size + share.stop)
        size = self.config.train.micro_batch_size or len(positions)
        return [self.task.train_batch(positions[first : first + size]) for first in range(0, len(positions), size)]

    def evaluate(self, split: str) -> dict[str, float]:
        """This rank's sums over a split; `reduce_metrics` makes metrics of all ranks' sums."""
        if self._whole:
            return self._whole.evaluate(split)
        self.model.eval()
        with torch.no_grad():
            # The bare model: ranks evaluate unequal shares, and DDP's forward expects all of them to take part.
            return self.task.evaluate(self.model, split, self.ranks.device, self.ranks.rank, self.ranks.world_size)

    def reduce_metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """The metrics of all ranks' sums together."""
        return self.task.metrics(dict(zip(sums, self.ranks.sum_floats(list(sums.values())), strict=True)))

    def is_finite(self) -> bool:
        """Whether weights, statistics and optimizer state hold no NaN and no infinity."""
        return all_finite([*self.model.state_dict().values(), *optimizer_tensors(self.optimizer, self.model).values()])

    def bytes_needed(self) -> int:
        """About how many bytes a checkpoint takes."""
        tensors = [*self.model.state_dict().values(), *optimizer_tensors(self.optimizer, self.model).values()]
        return sum(tensor.nbytes for tensor in tensors)

    def save_model(self, folder: Path) -> None:
        """Write a Hugging Face model folder."""
        save_quietly(self.model, folder)
        self.task.save_assets(folder)

    def save(self, folder: Path) -> None:
        """Write a Hugging Face model folder and the optimizer's state."""
        self.save_model(folder)
        save_file(optimizer_tensors(self.optimizer, self.model), folder / OPTIMIZER)
        follow_umask(folder)

    def load_model(self, folder: Path) -> None:
        """Take the weights of a verified folder."""
        try:
            load_model(self.model, folder / WEIGHTS)
        except (RuntimeError, FileNotFoundError, SafetensorError) as error:
            raise CheckpointError(f"{folder} does not fit this model: {error}") from error

    def load(self, folder: Path) -> None:
        """Take the weights and the optimizer's state of a verified checkpoint."""
        self.load_model(folder)
        load_optimizer_tensors(self.optimizer, self.model, load_file(folder / OPTIMIZER))
        if self._whole:
            self._whole.adopt()

    def reset(self) -> None:
        """Back to the initial weights and an optimizer without history."""
        self.model.load_state_dict(self._seeded_model().state_dict())
        self.optimizer.state.clear()
        if self._whole:
            self._whole.adopt()

    def _seeded_model(self) -> Any:
        torch.manual_seed(self.config.seed)
        return self.task.build_model()

    def _synchronised(self, last: bool) -> AbstractContextManager[Any]:
        """DDP exchanges gradients once per step, in the backward pass of the last micro-batch."""
        return nullcontext() if last else self.ranks.accelerator.no_sync(self._wrapped)


def _to(batch: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


def count_parameters(model: nn.Module) -> int:
    """Trainable parameters, shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
