"""The gated linear unit W3(act(W1 x) ⊙ W2 x) (paper, section 4.3; Shazeer 2020) as two matrix products."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from transnormer.errors import ConfigError, did_you_mean
from transnormer.ops.backend import choose, load_kernel
from transnormer.ops.shapes import check_no_tangents, check_one_dtype

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "relu": F.relu, "gelu": F.gelu}

_KERNEL = load_kernel("glu")


def glu(
    x: Tensor,
    weight_in: Tensor,
    bias_in: Tensor,
    weight_out: Tensor,
    *,
    activation: str = "silu",
    backend: str | None = None,
) -> Tensor:
    """(act(gate) ⊙ up)·weight_outᵀ, gate and up being the halves of x·weight_inᵀ + bias_in; x [..., D].

    `weight_in` [2F, D] and `bias_in` [2F] have the rows of the gate first; `weight_out` is [D_out, F]. There is no
    output bias: added by the caller, a compiler joins it with the dropout and the residual that follow. Under autocast
    the products are in its dtype. The kernel keeps x, gate and up for the backward, not their product (of narrow
    layers x alone), and is differentiable once.
    """
    _check(x, weight_in, bias_in, weight_out, activation)
    # The kernel serves compiled models too: a compiler writes the gradients of gate and up separately and then joins
    # them, at twice the time, and reads them once more for the gradient of the bias.
    if choose("glu", _KERNEL, backend, x.device, x=x, weight_in=weight_in).backend == "triton":
        assert _KERNEL is not None
        check_no_tangents("glu", x, weight_in, bias_in, weight_out)
        return _KERNEL.glu(x, weight_in, bias_in, weight_out, activation)
    gate, up = F.linear(x, weight_in, bias_in).chunk(2, dim=-1)
    return F.linear(ACTIVATIONS[activation](gate) * up, weight_out)


def _check(x: Tensor, weight_in: Tensor, bias_in: Tensor, weight_out: Tensor, activation: str) -> None:
    if activation not in ACTIVATIONS:
        raise ConfigError(f"glu: unknown activation '{activation}'", did_you_mean(activation, ACTIVATIONS))
    if x.dim() < 1:
        raise ConfigError("glu: x must be [..., D], got a number")
    if weight_in.dim() != 2 or weight_in.shape[1] != x.shape[-1] or weight_in.shape[0] % 2:
        raise ConfigError(
            f"glu: weight_in must be [2F, {x.shape[-1]}], got {list(weight_in.shape)}",
            "join the weights of gate and up: torch.cat([gate, up])",
        )
    if bias_in.shape != weight_in.shape[:1]:
        raise ConfigError(f"glu: bias_in must be [{weight_in.shape[0]}], got {list(bias_in.shape)}")
    if weight_out.dim() != 2 or 2 * weight_out.shape[1] != weight_in.shape[0]:
        raise ConfigError(f"glu: weight_out must be [D_out, {weight_in.shape[0] // 2}], got {list(weight_out.shape)}")
    check_one_dtype("glu", x=x, weight_in=weight_in, bias_in=bias_in, weight_out=weight_out)
