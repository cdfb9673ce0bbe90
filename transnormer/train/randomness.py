"""Randomness inside a step as a pure function of (seed, step, rank): a resumed run has no generator to restore."""

from __future__ import annotations

import numpy as np
import torch


def step_seed(seed: int, step: int, rank: int) -> int:
    """The seed of everything random inside one step on one rank, such as dropout."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0])


def seed_step(seed: int, step: int, rank: int, device: torch.device) -> None:
    """Seed torch's generators for one step, on the CPU and on the device in use.

    Not torch.manual_seed, which queues a call for every device that is not in use: a millisecond a step.
    """
    value = step_seed(seed, step, rank)
    torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        torch.cuda.manual_seed(value)
