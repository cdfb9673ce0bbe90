"""Whether processes can share the sequences of a run, as `train.context_parallel` asks of them."""

from __future__ import annotations

import math

from transnormer.config.schema import RunConfig
from transnormer.errors import ConfigError
from transnormer.mixers.registry import list_mixers, mixer_class
from transnormer.models.presets import model_config
from transnormer.tasks.registry import task_class
from transnormer.tasks.token_windows import TokenWindowTask


def require_pieces(config: RunConfig) -> None:
    """Raise, before any data is made, unless task, model and length can be cut into `train.context_parallel` pieces."""
    pieces, length = config.train.context_parallel, config.data.sequence_length
    if pieces == 1:
        return
    asked = f"train.context_parallel={pieces}"
    if not issubclass(task_class(config.task), TokenWindowTask):
        raise ConfigError(f"{asked}: {config.task} cannot share its sequences", "causal_lm and masked_lm can")
    model = model_config(config.model)
    blocks = [1]
    for name in dict.fromkeys(model.mixers or ()):
        mixer = mixer_class(name)
        if not mixer.traits.context_parallel:
            able = ", ".join(each for each in list_mixers() if mixer_class(each).traits.context_parallel)
            raise ConfigError(f"{asked}: {name} cannot share a sequence between processes", f"these mixers can: {able}")
        blocks.append(mixer.window(model.options_of(name)) or 1)
    block = math.lcm(*blocks)
    if pieces > length // block:
        raise ConfigError(
            f"{asked}: {length} tokens are {length // block} blocks of {block}, fewer than the processes",
            f"set data.sequence_length to at least {pieces * block}",
        )
    if length % (pieces * block):
        raise ConfigError(
            f"{asked}: data.sequence_length ({length}) is not a multiple of {pieces} blocks of {block}",
            f"set it to {length - length % (pieces * block)}",
        )
