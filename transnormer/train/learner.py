"""One rank's share of learning: the model, the step that trains it, its evaluation, and both on disk."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model, save_file
from torch import Tensor, nn

from transnormer.config.schema import RunConfig
from transnormer.errors import CheckpointError, ConfigError, TransNormerError
from transnormer.models.saving import follow_umask, save_quietly, save_settings
from transnormer.ops.backend import explain
from transnormer.step.evaluation import Evaluation
from transnormer.step.execution import CannotRun, Execution, choose_execution
from transnormer.step.shards import local, rows_of, shard, whole
from transnormer.step.training import StepOutcome, TrainingStep
from transnormer.tasks.contract import Feeds, Task
from transnormer.tasks.pieces import Pieces
from transnormer.tasks.registry import build_task
from transnormer.tasks.token_windows import TokenWindowTask
from transnormer.train.initial import WEIGHTS, Initial, find_initial, load_initial
from transnormer.train.ranks import Ranks
from transnormer.train.streamed import in_file_order, read_streamed, write_streamed

OPTIMIZER = "optimizer.safetensors"


class Learner:
    """The part of a run that computes; it neither counts steps nor writes to the run folder by itself."""

    def __init__(self, config: RunConfig, ranks: Ranks) -> None:
        self.config, self.ranks = config, ranks
        self.task = fitting_task(config, ranks)
        name = choose_execution(config.train, ranks.device, ranks.world_size)
        self.execution = Execution(name, ranks.device, bf16=ranks.uses_bf16)
        self.sharded = config.train.parallel == "fsdp"
        self._values: Iterator[Tensor] = iter(())  # of what is being saved, gathered from shards as they are asked for
        self.model = self._seeded_model()
        if not self.sharded:  # else layer by layer, in `_step`
            self.model.to(ranks.device)
        self.initial: Initial | None = None
        self.origin = "new weights"
        self._feeds = self.task.feeds(ranks.device) if self.execution.name != "eager" else Feeds(self.task)
        any_rank = ranks.any if self.sharded else None
        self._evaluation = Evaluation(self.model, self._feeds, config.train, self.execution, any_rank)

    @cached_property
    def _step(self) -> TrainingStep:
        """Made when first needed: an evaluation alone has no use for the optimizer's memory."""
        feeds = self._feeds
        if self.sharded:
            shard(self.model, self.ranks.world_size, self.ranks.device)
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

    def take_initial(self, expected: dict[str, Any] | None = None, model: Any = None) -> None:
        """Put the weights of `model.init`, if there is one, into a fresh model; `expected`: see `find_initial`."""
        if (init := self.config.model.init) is not None:
            self.initial = self.ranks.on_main(lambda: find_initial(init, expected))
            self.origin = load_initial(
                model if model is not None else self.model, self.task, self.initial, self.config.task
            )

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
        optimizer = self._step.optimizer  # first: making it puts the weights where they belong
        verdicts = [local(tensor).isfinite().all() for tensor in self.model.state_dict().values()]
        finite = bool(torch.stack([*verdicts, optimizer.is_finite()]).all())
        return not self.ranks.any(not finite) if self.sharded else finite

    def bytes_needed(self) -> int:
        """About how many bytes a checkpoint takes."""
        return sum(tensor.nbytes for tensor in self.model.state_dict().values()) + self._step.optimizer.nbytes

    def save_from_all(self, write: Callable[[], None], *, optimizer: bool = True) -> None:
        """Let the main process write what `save` (without `optimizer`: `save_model`) writes.

        What is in shards is gathered tensor by tensor, and dropped when it is in the file: each process holds one whole
        tensor beside its shards. If writing fails, the main process still takes part in all that the others gather.
        """
        tensors: list[Tensor] = []
        if self.sharded:
            tensors += self._weights().values()
            tensors += in_file_order(self._step.optimizer.state()).values() if optimizer else ()
        self._values = map(whole, tensors)

        def gather_the_rest() -> None:
            for _ in self._values:
                pass

        def work() -> None:
            try:
                write()
            finally:
                gather_the_rest()

        self.ranks.on_main(work, meanwhile=gather_the_rest)

    def _weights(self) -> dict[str, Tensor]:
        """What a model folder holds, as it lies here; what is tied to something else is stored once."""
        every = {name for name, _ in self.model.named_parameters(remove_duplicate=False)}
        tied = every - {name for name, _ in self.model.named_parameters()}
        return in_file_order({name: value for name, value in self.model.state_dict().items() if name not in tied})

    def save_model(self, folder: Path) -> None:
        """Write a Hugging Face model folder."""
        if self.sharded:
            save_settings(self.model, folder)
            write_streamed(folder / WEIGHTS, self._weights(), self._values, {"format": "pt"})
            follow_umask(folder)
        else:
            save_quietly(self.model, folder)
        self.task.save_assets(folder)

    def save(self, folder: Path) -> None:
        """Write a Hugging Face model folder and the optimizer's state."""
        self.save_model(folder)
        if self.sharded:
            write_streamed(folder / OPTIMIZER, in_file_order(self._step.optimizer.state()), self._values)
        else:
            save_file(self._step.optimizer.state(), folder / OPTIMIZER)
        follow_umask(folder)

    def load_model(self, folder: Path) -> None:
        """Take the weights of a verified folder, to score them; `load` is for going on with training."""
        try:
            if self.sharded:
                self._load_rows(folder / WEIGHTS)
            else:
                load_model(self.model, folder / WEIGHTS)
        except (RuntimeError, FileNotFoundError, SafetensorError) as error:
            words = textwrap.shorten(str(error), 200, placeholder=" ...")  # safetensors names every tensor
            raise CheckpointError(f"{folder} does not fit this model: {words}") from error

    def load(self, folder: Path) -> None:
        """Take the weights and the optimizer's state of a verified checkpoint."""
        self.load_model(folder)
        self._step.optimizer.read_weights()
        # Whole, for a moment, also where each process keeps its rows of it alone.
        self._step.optimizer.load_state(load_file(folder / OPTIMIZER))

    def _load_rows(self, path: Path) -> None:
        """Take the rows that lie here of a model file, a tensor at a time."""
        ours = self._weights()
        missing = set(ours)

        def take(name: str, values: Tensor) -> None:
            if name not in ours or values.shape != ours[name].shape:
                raise RuntimeError(f"{name} {list(values.shape)} is not of this model")
            local(ours[name]).copy_(rows_of(ours[name], values))
            missing.remove(name)

        with torch.no_grad():
            read_streamed(path, take)
        if missing:
            raise RuntimeError(f"it has no {min(missing)}")

    def reset(self, expected: dict[str, Any] | None = None) -> None:
        """Back to the initial weights, those that a run `expected` where it has a record, and no optimizer history."""
        fresh = self._seeded_model()
        self.take_initial(expected, fresh)
        values = fresh.state_dict()
        with torch.no_grad():
            for name, tensor in self.model.state_dict().items():
                local(tensor).copy_(rows_of(tensor, values[name]))
        self._step.optimizer.read_weights()
        self._step.optimizer.reset()

    def _seeded_model(self) -> Any:
        torch.manual_seed(self.config.seed)
        return self.task.build_model()


def fitting_task(config: RunConfig, ranks: Ranks) -> Task:
    """The task of a run whose batches can be shared out among its processes and held in memory."""
    size = config.train.batch_size
    if size < ranks.num_shares:
        whom = "groups of processes that share sequences" if ranks.context else "processes"
        raise ConfigError(
            f"train.batch_size ({size}) is smaller than the number of {whom}",
            hint=f"set train.batch_size to at least {ranks.num_shares}",
        )
    task = build_task(config)
    # A step's inputs are put together whole: too many of them would take all memory before anything failed.
    one = sum(values.nbytes for values in task.train_batch(range(1)).values())
    needed, there = one * len(ranks.share_of(size)), psutil.virtual_memory().total
    if needed > there:
        raise ConfigError(
            f"train.batch_size={size}: the inputs alone of a step take {needed / 2**30:,.0f} GiB, and this machine has "
            f"{there / 2**30:,.0f}",
            hint="lower train.batch_size",
        )
    return task


def count_parameters(model: nn.Module) -> int:
    """Trainable parameters, shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
