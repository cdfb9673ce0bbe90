"""Which temperatures a text can be sampled at."""

from __future__ import annotations

import math

from transnormer.errors import ConfigError

# Logits divided by less could leave float32, whose softmax is then no distribution.
COLDEST = 1e-30


def check_temperature(temperature: float, hint: str) -> None:
    """Raise, with the hint how the likeliest text is asked for, unless it is one."""
    if not temperature > 0:
        raise ConfigError(f"temperature must be above 0, got {temperature}", hint)
    if not COLDEST <= temperature < math.inf:
        raise ConfigError(f"temperature must be finite and at least {COLDEST:g}, got {temperature}", hint)
