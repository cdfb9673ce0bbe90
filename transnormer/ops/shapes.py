"""The checks that every op makes on its tensors: a wrong call names the argument and the shape it should have."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from transnormer.errors import ConfigError
from transnormer.ops.backend import ENVIRONMENT_VARIABLE

_WITHOUT_KERNELS = f"use backend='torch', or set {ENVIRONMENT_VARIABLE}=torch"


def check_qkv(op: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> None:
    """q and k are [B, T, H, D], v is [B, T, H, E], mask is [B, T] with 1 = real token."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            raise ConfigError(f"{op}: {name} must be [B, T, H, D], got shape {list(x.shape)}")
    if q.shape != k.shape:
        raise ConfigError(
            f"{op}: q and k must have the same shape, got {list(q.shape)} and {list(k.shape)}",
            "attention between sequences of different length is not defined here",
        )
    if v.shape[:3] != q.shape[:3]:
        raise ConfigError(f"{op}: v must be {list(q.shape[:3])} + [E], got {list(v.shape)}")
    if q.shape[1] < 1:
        raise ConfigError(f"{op}: the sequence is empty (T = 0)")
    check_heads(op, q, k, v)
    if mask is not None:
        check_mask(op, mask, q)


def check_heads(op: str, q: Tensor, k: Tensor, v: Tensor) -> None:
    """q, k [B, T, H, D] and v [B, T, H, E] have a head, columns, and one dtype."""
    if not (q.shape[2] and q.shape[3] and v.shape[3]):
        raise ConfigError(f"{op}: there must be a head, with a column, got q {list(q.shape)} and v {list(v.shape)}")
    if not q.dtype == k.dtype == v.dtype:
        raise ConfigError(f"{op}: q, k and v must have one dtype, got {q.dtype}, {k.dtype}, {v.dtype}")


def check_mask(op: str, mask: Tensor, x: Tensor) -> None:
    """The mask of x [B, T, ...] is [B, T] with 1 = real token."""
    if mask.shape != x.shape[:2]:
        raise ConfigError(f"{op}: mask must be [B, T] = {list(x.shape[:2])}, got {list(mask.shape)}")
    check_mask_dtype(f"{op}: mask", mask)


def check_mask_dtype(name: str, mask: Tensor) -> None:
    """Floats are refused, not compared with 0: in the additive masks of other libraries a real token is the 0."""
    if mask.is_floating_point():
        raise ConfigError(
            f"{name} must be bool or integers, 1 = real token, got {mask.dtype}",
            "mask.bool() if 1 means real in yours, mask == 0 if it is an additive one of 0 and -inf",
        )


def check_block_size(op: str, block_size: int) -> None:
    """Blocks of DiagAttention have at least one token."""
    if block_size < 1:
        raise ConfigError(f"{op}: block_size must be at least 1, got {block_size}")


def check_dropout(op: str, probability: float) -> None:
    """What is left after dropout is scaled up, so something must be left."""
    if not 0 <= probability < 1:
        raise ConfigError(f"{op}: dropout_p must be at least 0 and below 1, got {probability}")


def check_one_dtype(op: str, **tensors: Tensor) -> None:
    """Weights and inputs of a layer have one dtype, unless autocast brings them to one."""
    dtypes = [tensor.dtype for tensor in tensors.values()]
    device = next(iter(tensors.values())).device.type
    if not torch.is_autocast_enabled(device) and dtypes != dtypes[:1] * len(dtypes):
        *first, last = tensors
        raise ConfigError(
            f"{op}: {', '.join(first)} and {last} must have one dtype, got {', '.join(map(str, dtypes))}",
            "convert them, or call it under torch.autocast",
        )


def check_no_tangents(op: str, *tensors: Tensor | None, hint: str = _WITHOUT_KERNELS) -> None:
    """PyTorch drops the tangents of forward-mode differentiation at a custom op: its derivative would be zero."""
    if any(tensor is not None and unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise ConfigError(f"{op}: this implementation has no forward-mode derivative (jvp, jacfwd)", hint)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """States, norms and softmax accumulate in float32, or in float64 when the inputs are."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def square_sums(x: Tensor) -> Tensor:
    """Σx² over the last dimension, in float32 at least: what an RMSNorm over the heads divides by."""
    return x.to(accumulation_dtype(x.dtype)).square().sum(dim=-1)


def zero_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """Set the rows [B, T, ...] of padded tokens to zero."""
    if mask is None:
        return x
    return x.masked_fill(~mask.bool().reshape(*mask.shape, *[1] * (x.dim() - 2)), 0)
