"""The kernel feature maps φ of linear attention: T1 uses elu, T2 uses 1+elu (paper, section 5.1)."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from transnormer.errors import ConfigError, did_you_mean


def one_plus_elu(x: Tensor) -> Tensor:
    """1 + elu(x): positive, the feature map of Katharopoulos et al. (2020)."""
    return F.elu(x) + 1


def identity(x: Tensor) -> Tensor:
    """For callers that have applied their own feature map already."""
    return x


FEATURE_MAPS: dict[str, Callable[[Tensor], Tensor]] = {"1+elu": one_plus_elu, "elu": F.elu, "identity": identity}


def feature_map_named(name: str) -> Callable[[Tensor], Tensor]:
    """Look a feature map up by name."""
    if name not in FEATURE_MAPS:
        raise ConfigError(f"unknown feature_map '{name}'", did_you_mean(name, FEATURE_MAPS))
    return FEATURE_MAPS[name]
