"""Feed-forward layers written from their equations."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# The definitions, not PyTorch's functions of these names: x·σ(x), max(x, 0), x·Φ(x) with the normal distribution's Φ.
DEFINITIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": lambda x: x * torch.sigmoid(x),
    "relu": lambda x: x.clamp(min=0),
    "gelu": lambda x: x * torch.special.ndtr(x),
}


def glu_reference(
    x: Tensor, weight_in: Tensor, bias_in: Tensor, weight_out: Tensor, *, activation: str = "silu"
) -> Tensor:
    """W3(act(W1 x + b1) ⊙ (W2 x + b2)), where W1 and b1 are the first half of `weight_in` and `bias_in`."""
    width = weight_out.shape[1]
    gate = torch.einsum("...d,fd->...f", x, weight_in[:width]) + bias_in[:width]
    up = torch.einsum("...d,fd->...f", x, weight_in[width:]) + bias_in[width:]
    return torch.einsum("...f,df->...d", DEFINITIONS[activation](gate) * up, weight_out)


def mlp_reference(
    x: Tensor, weight_in: Tensor, bias_in: Tensor, weight_out: Tensor, bias_out: Tensor, *, activation: str = "gelu"
) -> Tensor:
    """W2 act(W1 x + b1) + b2."""
    hidden = DEFINITIONS[activation](torch.einsum("...d,fd->...f", x, weight_in) + bias_in)
    return torch.einsum("...f,df->...d", hidden, weight_out) + bias_out
