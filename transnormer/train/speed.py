"""How the steps of a run are made: op by op, compiled, or as one CUDA graph."""

from __future__ import annotations

from typing import Literal

from transnormer.config.schema import TrainSection
from transnormer.errors import ConfigError
from transnormer.train.ranks import Ranks

Execution = Literal["eager", "compile", "cuda_graph"]


def choose_execution(train: TrainSection, ranks: Ranks) -> Execution:
    """What `train.execution` means on this device."""
    on_gpu = ranks.device.type == "cuda"
    obstacle = _obstacle_to_graph(train, ranks)
    if train.execution == "cuda_graph" and obstacle:
        raise ConfigError(f"train.execution=cuda_graph {obstacle}", hint="use train.execution=auto")
    if train.execution != "auto":
        return train.execution
    if not on_gpu:
        return "eager"
    return "compile" if obstacle else "cuda_graph"


def _obstacle_to_graph(train: TrainSection, ranks: Ranks) -> str | None:
    if ranks.device.type != "cuda":
        return "needs a CUDA device"
    if ranks.world_size > 1:
        return "works in one process, not in several"
    if train.micro_batch_size not in (None, train.batch_size):
        return "takes a batch at once: it cannot be cut by train.micro_batch_size"
    return None
