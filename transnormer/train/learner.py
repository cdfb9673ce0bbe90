"""One rank's share of learning: the model, the step that trains it, its evaluation, and both on disk."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model, save_file
from torch import nn

from transnormer.config.schema import RunConfig
from transnormer.errors import CheckpointError, ConfigError, TransNormerError
from transnormer.models.saving import follow_umask, save_quietly
from transnormer.ops.backend import explain
from transnormer.step.evaluation import Evaluation
from transnormer.step.execution import CannotRun, Execution, choose_execution
from transnormer.step.training import StepOutcome, TrainingStep
from transnormer.tasks.contract import Feeds
from transnormer.tasks.pieces import Pieces
from transnormer.tasks.registry import build_task
from transnormer.tasks.token_windows import TokenWindowTask
from transnormer.train.initial import WEIGHTS, Initial, find_initial, load_initial
from transnormer.train.ranks import Ranks

OPTIMIZER = "optimizer.safetensors"


class Learner:
    """The part of a run that computes; it neither counts steps nor writes to the run folder by itself."""

    def __init__(self, config: RunConfig, ranks: Ranks) -> None:
        if config.train.batch_size < ranks.num_shares:
            whom = "groups of processes that share sequences" if ranks.context else "processes"
            raise ConfigError(
                f"train.batch_size ({config.train.batch_size}) is smaller than the number of {whom}",
                hint=f"set train.batch_size to at least {ranks.num_shares}",
            )
        self.config, self.ranks = config, ranks
        self.task = build_task(config)
        name = choose_execution(config.train, ranks.device, ranks.world_size)
        self.execution = Execution(name, ranks.device, bf16=ranks.uses_bf16)
        self.model = self._seeded_model().to(ranks.device)
        self.initial: Initial | None = None
        self.origin = "new weights"
        self._feeds = self.task.feeds(ranks.device) if self.execution.name != "eager" else Feeds(self.task)
        self._evaluation = Evaluation(self.model, self._feeds, config.train, self.execution)

    @cached_property
    def _step(self) -> TrainingStep:
        """Made when first needed: an evaluation alone has no use for the optimizer's memory."""
        feeds = self._feeds
        if self.ranks.context is not None:
            assert isinstance(self.task, TokenWindowTask)
            feeds = Pieces(self.task, self.ranks.context)
        return TrainingStep(self.model, feeds, self.config, self.execution, self.ranks)

    def describe(self) -> str:
        """What is trained, where and on what, in a line."""
        train, store = self.config.train, self.task.store
        precision = "bf16" if self.execution.bf16 else "float32"
        backend = explain("norm_attention", self.ranks.device).backend
        threads = f" with {self.ranks.threads}" if self.ranks.threads else ""
        processes = f" in {self.ranks.world_size} processes" if self.ranks.world_size > 1 else ""
        processes += f", {train.context_parallel} to a sequence" if self.ranks.context else ""
        return (
            f"{self.config.model.name}, {count_parameters(self.model):,} parameters, on {self.ranks.device.type}"
            f"{threads}{processes} ({precision}, {self.execution.name}, ops by {backend}); "
            f"{self.config.task} on {store.path}, {self.task.num_train_samples:,} samples; "
            f"{train.steps:,} steps of {train.batch_size}"
        )

    def take_initial(self, expected: dict[str, Any] | None = None) -> None:
        """Put the weights of `model.init`, if there is one, into the fresh model; `expected`: see `find_initial`."""
        if (init := self.config.model.init) is not None:
            self.initial = self.ranks.on_main(lambda: find_initial(init, expected))
            self.origin = load_initial(self.model, self.task, self.initial, self.config.task)

    @property
    def initial_facts(self) -> dict[str, Any] | None:
        """What was taken from `model.init`, for the record; None where nothing was."""
        return {**self.initial.facts(), "taken": self.origin} if self.initial else None

    def prepare(self) -> None:
        """Compile what is to be compiled, so that it is not counted as training."""
        try:
            self._step.prepare()
        except CannotRun as obstacle:
            raise TransNormerError(
                f"the step cannot run as train.execution={self.execution.name}: {obstacle}",
                hint="train.execution=eager, in a new run, makes its steps op by op; see also `transnormer doctor`",
            ) from obstacle

    def advance(self, step: int, batches: Sequence[int]) -> list[StepOutcome]:
        """Steps on these batches, from the step-th on; ends with the first that is not finite, which is not updated."""
        return self._step.advance(step, batches)

    def evaluate(self, split: str) -> dict[str, float]:
        """This rank's sums over a split; `reduce_metrics` makes metrics of all ranks' sums."""
        place = self.ranks.rank, self.ranks.world_size
        sums = self._evaluation.sums(split, *place)
        for other in self.task.beside(split):
            sums |= {f"{other}.{name}": value for name, value in self._evaluation.sums(other, *place).items()}
        return sums

    def reduce(self, sums: dict[str, float]) -> dict[str, float]:
        """All ranks' sums together."""
        return dict(zip(sums, self.ranks.sum_floats(list(sums.values())), strict=True))

    def reduce_metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """The metrics of all ranks' sums together."""
        return self.task.metrics(self.reduce(sums))

    def is_finite(self) -> bool:
        """Whether weights, statistics and optimizer state hold no NaN and no infinity."""
        verdicts = [tensor.isfinite().all() for tensor in self.model.state_dict().values()]
        return bool(torch.stack([*verdicts, self._step.optimizer.is_finite()]).all())

    def bytes_needed(self) -> int:
        """About how many bytes a checkpoint takes."""
        return sum(tensor.nbytes for tensor in self.model.state_dict().values()) + self._step.optimizer.nbytes

    def save_model(self, folder: Path) -> None:
        """Write a Hugging Face model folder."""
        save_quietly(self.model, folder)
        self.task.save_assets(folder)

    def save(self, folder: Path) -> None:
        """Write a Hugging Face model folder and the optimizer's state."""
        self.save_model(folder)
        save_file(self._step.optimizer.state(), folder / OPTIMIZER)
        follow_umask(folder)

    def load_model(self, folder: Path) -> None:
        """Take the weights of a verified folder, to score them; `load` is for going on with training."""
        try:
            load_model(self.model, folder / WEIGHTS)
        except (RuntimeError, FileNotFoundError, SafetensorError) as error:
            raise CheckpointError(f"{folder} does not fit this model: {error}") from error

    def load(self, folder: Path) -> None:
        """Take the weights and the optimizer's state of a verified checkpoint."""
        self.load_model(folder)
        self._step.optimizer.read_weights()
        self._step.optimizer.load_state(load_file(folder / OPTIMIZER))

    def reset(self, expected: dict[str, Any] | None = None) -> None:
        """Back to the initial weights, those that a run `expected` where it has a record, and no optimizer history."""
        self.model.load_state_dict(self._seeded_model().state_dict())
        self.take_initial(expected)
        self._step.optimizer.read_weights()
        self._step.optimizer.reset()

    def _seeded_model(self) -> Any:
        torch.manual_seed(self.config.seed)
        return self.task.build_model()


def count_parameters(model: nn.Module) -> int:
    """Trainable parameters, shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
