"""Learning rate and beta1 as pure functions of the step, so that a resumed run needs only the step.

`step` counts the updates made so far: the first update uses step 0. The shapes are those of transformers' schedules
(constant, inverse_sqrt, polynomial, cosine; all after a linear warm-up from zero) and of torch's OneCycleLR with linear
annealing (Smith & Topin 2019).
"""

from __future__ import annotations

import math

from transnormer.config.schema import OptimSection

_INVERSE_SQRT_TIMESCALE = 10_000  # the decay's time scale where there is no warm-up to give it
_CYCLE_START = 1 / 25  # one_cycle's first learning rate, relative to the peak
_CYCLE_END = _CYCLE_START / 1e4
_CYCLE_BETA1_HIGH, _CYCLE_BETA1_LOW = 0.95, 0.85


def learning_rate(optim: OptimSection, total_steps: int, step: int) -> float:
    """The learning rate of the update that follows `step` updates."""
    return optim.lr * _relative_rate(optim, total_steps, step)


def beta1(optim: OptimSection, total_steps: int, step: int) -> float:
    """AdamW's first beta: constant, but one_cycle moves it against the learning rate."""
    if optim.schedule != "one_cycle" or not optim.cycle_momentum:
        return optim.betas[0]
    rising, progress = _cycle_phase(optim.warmup_steps, total_steps, step)
    if rising:
        return _between(_CYCLE_BETA1_HIGH, _CYCLE_BETA1_LOW, progress)
    return _between(_CYCLE_BETA1_LOW, _CYCLE_BETA1_HIGH, progress)


def _relative_rate(optim: OptimSection, total_steps: int, step: int) -> float:
    warmup = optim.warmup_steps
    if optim.schedule == "one_cycle":
        rising, progress = _cycle_phase(warmup, total_steps, step)
        return _between(_CYCLE_START, 1.0, progress) if rising else _between(1.0, _CYCLE_END, progress)
    if step < warmup:
        return step / warmup
    if optim.schedule == "constant":
        return 1.0
    if optim.schedule == "inverse_sqrt":
        timescale = warmup or _INVERSE_SQRT_TIMESCALE
        return math.sqrt(timescale / (step - warmup + timescale))
    progress = (step - warmup) / (total_steps - warmup)
    if optim.schedule == "polynomial":
        decay = (1.0 - progress) ** optim.power
    else:
        decay = 0.5 * (1.0 + math.cos(math.pi * progress))
    return _between(optim.final_lr_ratio, 1.0, decay)


def _cycle_phase(warmup: int, total_steps: int, step: int) -> tuple[bool, float]:
    """Which half of the cycle a step is in, and how far through it; the peak is the last step of the warm-up."""
    peak = warmup - 1
    if step <= peak:
        return True, step / peak if peak > 0 else 1.0
    return False, (step - peak) / (total_steps - 1 - peak)


def _between(start: float, end: float, progress: float) -> float:
    return start + (end - start) * progress
