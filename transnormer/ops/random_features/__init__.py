"""Positive random features of the softmax kernel, FAVOR+: φ(x) = exp(Wx̂ + offset - ‖x̂‖²/2 - largest) + ε.

x̂ is x times a scale; `largest`, the greatest entry of Wx̂ + offset over a scope, keeps the exponential finite. In the
quotient of linear attention it cancels but for ε. The code of Choromanski et al. 2021 stops the gradient there; here it
runs through, because with ε = 1e-4 that is worth a few percent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from transnormer.errors import ConfigError, did_you_mean
from transnormer.ops.autocast import without_autocast
from transnormer.ops.backend import choose, load_kernel
from transnormer.ops.shapes import accumulation_dtype, check_are_tensors, check_mask, check_no_tangents, zero_padding

_KERNEL = load_kernel("random_features")
# Over what the greatest exponent is taken: a token or a sequence of a head, or everything; "none" subtracts nothing.
SCOPES = ("token", "sequence", "batch", "none")


def random_features(
    x: Tensor,
    weight: Tensor,
    *,
    scale: float,
    epsilon: float,
    scope: str,
    offset: Tensor | None = None,
    mask: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """Positive random features of the softmax kernel (FAVOR+), exp(Wx̂ + offset - ‖x̂‖²/2 - largest) + ε.

    Of x [B, T, H, D] they are [B, T, H, M]; x̂ is x times `scale`, and `largest` the greatest Wx̂ + offset over the
    `scope`: `token`, `sequence` or `batch`, or `none`. W is `weight` [M, D]; it and `offset` [M] get no gradient.

    Exponents are computed in float32 at least, the result has the dtype of `x`. Padded tokens (`mask` [B, T] zero) are
    in no scope, and their features are zero. The kernel is differentiable once; where several exponents of a sequence
    are the greatest, it gives the gradient to the first.

    >>> import torch
    >>> x, weight = torch.randn(2, 50, 4, 16), torch.randn(32, 16)
    >>> tn.ops.random_features(x, weight, scale=0.5, epsilon=1e-4, scope="token").shape
    torch.Size([2, 50, 4, 32])
    """
    _check(x, weight, scope, offset, mask)
    if not x.numel():  # a batch without sequences has no greatest exponent
        return x @ weight.detach().to(x.dtype).mT
    if choose("random_features", _KERNEL, backend, x.device, x=x, weight=weight).backend == "triton":
        assert _KERNEL is not None
        check_no_tangents("random_features", x)
        return _KERNEL.random_features(x, weight, scale, epsilon, scope, offset, mask)
    dtype = accumulation_dtype(x.dtype)
    x = zero_padding(x, mask)
    with without_autocast(x.device):
        scaled = x.to(dtype) * scale
        exponents = scaled @ weight.detach().to(dtype).mT
    if offset is not None:
        exponents = exponents + offset.detach().to(dtype)
    if mask is not None:
        # Out of the scope.
        exponents = exponents.masked_fill(~mask.bool()[:, :, None, None], -torch.inf)
    if scope != "none":
        exponents = exponents - _largest(exponents, scope)
    features = (exponents - scaled.square().sum(dim=-1, keepdim=True) / 2).exp() + epsilon
    return zero_padding(features, mask).to(x.dtype)


def _largest(exponents: Tensor, scope: str) -> Tensor:
    """The greatest of exponents [B, T, H, M] in each scope; zero where all of it is padding."""
    over = {"token": (3,), "sequence": (1, 3), "batch": (0, 1, 2, 3)}[scope]
    largest = exponents.amax(dim=over, keepdim=True)
    return largest.masked_fill(largest == -torch.inf, 0)


def _check(x: Tensor, weight: Tensor, scope: str, offset: Tensor | None, mask: Tensor | None) -> None:
    check_are_tensors("random_features", x=x, weight=weight, offset=offset)
    if x.dim() != 4 or x.shape[1] < 1:
        raise ConfigError(f"random_features: x must be [B, T, H, D] with T ≥ 1, got shape {list(x.shape)}")
    if weight.dim() != 2 or weight.shape[1] != x.shape[3]:
        raise ConfigError(f"random_features: weight must be [M, {x.shape[3]}], got {list(weight.shape)}")
    if offset is not None and offset.shape != weight.shape[:1]:
        raise ConfigError(f"random_features: offset must be [{weight.shape[0]}], got {list(offset.shape)}")
    if mask is not None:
        check_mask("random_features", mask, x)
    if scope not in SCOPES:
        raise ConfigError(f"random_features: unknown scope '{scope}'", did_you_mean(scope, SCOPES))
