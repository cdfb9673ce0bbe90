"""The feed-forward layer written from the equation."""

from __future__ import annotations

import torch
from torch import Tensor

from transnormer.ops.glu.reference import DEFINITIONS


def mlp_reference(
    x: Tensor, weight_in: Tensor, bias_in: Tensor, weight_out: Tensor, bias_out: Tensor, *, activation: str = "gelu"
) -> Tensor:
    """W2 act(W1 x + b1) + b2."""
    hidden = DEFINITIONS[activation](torch.einsum("...d,fd->...f", x, weight_in) + bias_in)
    return torch.einsum("...f,df->...d", hidden, weight_out) + bias_out
