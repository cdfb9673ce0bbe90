"""Feed-forward layers: the gated linear unit (paper, section 4.3; Shazeer 2020) and the vanilla transformer's MLP."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from transnormer.errors import ConfigError
from transnormer.ops.activations import ACTIVATIONS, check_activation
from transnormer.ops.backend import choose, load_kernel
from transnormer.ops.shapes import check_are_tensors, check_no_tangents, check_one_dtype

_KERNEL = load_kernel("feed_forward")


def glu(
    x: Tensor,
    weight_in: Tensor,
    bias_in: Tensor,
    weight_out: Tensor,
    *,
    activation: str = "silu",
    backend: str | None = None,
) -> Tensor:
    """Gated linear unit: (act(gate) ⊙ up)·weight_outᵀ, where gate and up are the halves of x·weight_inᵀ + bias_in.

    x is [..., D]; `weight_in` [2F, D] and `bias_in` [2F] have the rows of the gate first; `weight_out` is [D_out, F].
    There is no output bias: added by the caller, a compiler fuses it with the dropout and the residual that follow.
    Under autocast the products are in its dtype. The kernel keeps x, gate and up for the backward, not their product
    (of layers of small width x alone), and is differentiable once.

    >>> import torch
    >>> wide, out = torch.nn.Linear(8, 2 * 16), torch.nn.Linear(16, 8)
    >>> tn.ops.glu(torch.randn(3, 8), wide.weight, wide.bias, out.weight).shape
    torch.Size([3, 8])
    """
    _check("glu", 2, x, weight_in, bias_in, weight_out, activation)
    check_one_dtype("glu", x=x, weight_in=weight_in, bias_in=bias_in, weight_out=weight_out)
    # The kernel serves compiled models too: a compiler writes the gradients of gate and up separately and then joins
    # them, at twice the time, and reads them once more for the gradient of the bias.
    if choose("feed_forward", _KERNEL, backend, x.device, x=x, weight_out=weight_out, gated=True).backend == "triton":
        assert _KERNEL is not None
        check_no_tangents("glu", x, weight_in, bias_in, weight_out)
        return _KERNEL.glu(x, weight_in, bias_in, weight_out, activation)
    gate, up = F.linear(x, weight_in, bias_in).chunk(2, dim=-1)
    return F.linear(ACTIVATIONS[activation](gate) * up, weight_out)


def mlp(
    x: Tensor,
    weight_in: Tensor,
    bias_in: Tensor,
    weight_out: Tensor,
    bias_out: Tensor,
    *,
    activation: str = "gelu",
    backend: str | None = None,
) -> Tensor:
    """Feed-forward layer: act(x·weight_inᵀ + bias_in)·weight_outᵀ + bias_out.

    x is [..., D], weight_in [F, D], weight_out [D_out, F]. The kernel is for layers of small width and takes autocast's
    dtype; PyTorch's products serve all others. It keeps x and the weights for the backward, and is differentiable once.

    >>> import torch
    >>> wide, out = torch.nn.Linear(8, 32), torch.nn.Linear(32, 8)
    >>> tn.ops.mlp(torch.randn(3, 8), wide.weight, wide.bias, out.weight, out.bias).shape
    torch.Size([3, 8])
    """
    _check("mlp", 1, x, weight_in, bias_in, weight_out, activation)
    check_are_tensors("mlp", bias_out=bias_out)
    if bias_out.shape != weight_out.shape[:1]:
        raise ConfigError(f"mlp: bias_out must be [{weight_out.shape[0]}], got {list(bias_out.shape)}")
    check_one_dtype("mlp", x=x, weight_in=weight_in, bias_in=bias_in, weight_out=weight_out, bias_out=bias_out)
    if choose("feed_forward", _KERNEL, backend, x.device, x=x, weight_out=weight_out, gated=False).backend == "triton":
        assert _KERNEL is not None
        check_no_tangents("mlp", x, weight_in, bias_in, weight_out, bias_out)
        return _KERNEL.mlp(x, weight_in, bias_in, weight_out, bias_out, activation)
    return F.linear(ACTIVATIONS[activation](F.linear(x, weight_in, bias_in)), weight_out, bias_out)


def _check(
    op: str, halves: int, x: Tensor, weight_in: Tensor, bias_in: Tensor, weight_out: Tensor, activation: str
) -> None:
    """Shapes of a layer whose `weight_in` has one block of rows, or two of them: gate and up."""
    check_activation(op, activation)
    check_are_tensors(op, x=x, weight_in=weight_in, bias_in=bias_in, weight_out=weight_out)
    if x.dim() < 1:
        raise ConfigError(f"{op}: x must be [..., D], got a number")
    if weight_in.dim() != 2 or weight_in.shape[1] != x.shape[-1] or weight_in.shape[0] % halves:
        raise ConfigError(
            f"{op}: weight_in must be [{'2F' if halves == 2 else 'F'}, {x.shape[-1]}], got {list(weight_in.shape)}",
            "concatenate the weights of gate and up: torch.cat([gate, up])" if halves == 2 else None,
        )
    if bias_in.shape != weight_in.shape[:1]:
        raise ConfigError(f"{op}: bias_in must be [{weight_in.shape[0]}], got {list(bias_in.shape)}")
    hidden = weight_in.shape[0] // halves
    if weight_out.dim() != 2 or weight_out.shape[1] != hidden:
        raise ConfigError(f"{op}: weight_out must be [D_out, {hidden}], got {list(weight_out.shape)}")
