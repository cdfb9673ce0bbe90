"""The checks that every op makes on its tensors: a wrong call names the argument and the shape it should have."""

from __future__ import annotations

import math
from numbers import Integral, Real

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.fx.experimental.symbolic_shapes import has_static_value

from transnormer.errors import ConfigError
from transnormer.ops.backend import ENVIRONMENT_VARIABLE

_WITHOUT_KERNELS = f"use backend='torch', or set {ENVIRONMENT_VARIABLE}=torch"


def check_tensors(op: str, **tensors: Tensor) -> None:
    """Attention is of floating-point tensors: not of numpy's arrays, nor of whole numbers."""
    check_are_tensors(op, **tensors)
    for name, x in tensors.items():
        if not x.is_floating_point():
            raise ConfigError(f"{op}: {name} must have a floating-point dtype, got {x.dtype}", f"{name}.float()")


def check_are_tensors(op: str, **tensors: Tensor | None) -> None:
    """What is given is torch's: numpy's arrays and lists have other methods."""
    for name, x in tensors.items():
        if x is not None and not isinstance(x, Tensor):
            raise ConfigError(f"{op}: {name} must be a tensor, got {type(x).__name__}", f"torch.as_tensor({name})")


def check_qkv(op: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> None:
    """q and k are [B, T, H, D], v is [B, T, H, E], mask is [B, T] with 1 = real token."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            raise ConfigError(f"{op}: {name} must be [B, T, H, D], got shape {list(x.shape)}")
    for name, x, sizes in (("k", k, 4), ("v", v, 3)):
        if x.shape[:sizes] != q.shape[:sizes]:
            raise ConfigError(
                f"{op}: {name} must be {_expected(q, sizes)}, got {list(x.shape)} where q is {list(q.shape)}",
                _why_unequal(q, x, sizes),
            )
    if q.shape[1] < 1:
        raise ConfigError(f"{op}: the sequence is empty (T = 0)")
    check_heads(op, q, k, v)
    if mask is not None:
        check_mask(op, mask, q)


def _expected(q: Tensor, sizes: int) -> str:
    return "of the shape of q" if sizes == 4 else f"{list(q.shape[:3])} + [E]"


def _why_unequal(q: Tensor, x: Tensor, sizes: int) -> str:
    """What to do about the first of [B, T, H, D] that differs."""
    reasons = (
        "one batch for queries, keys and values",
        "attention between sequences of different length is not defined here",
        "every head has its own keys and values here; for shared ones: k.repeat_interleave(q heads // k heads, dim=2)",
        "queries and keys need one head size; that of the values alone is free",
    )
    return next(why for why, a, b in zip(reasons[:sizes], q.shape, x.shape, strict=False) if a != b)


def check_heads(op: str, q: Tensor, k: Tensor, v: Tensor) -> None:
    """q, k [B, T, H, D] and v [B, T, H, E] have a head, columns, and one dtype."""
    if not (q.shape[2] and q.shape[3] and v.shape[3]):
        raise ConfigError(f"{op}: there must be a head, with a column, got q {list(q.shape)} and v {list(v.shape)}")
    if not q.dtype == k.dtype == v.dtype:
        raise ConfigError(f"{op}: q, k and v must have one dtype, got {q.dtype}, {k.dtype}, {v.dtype}")


def check_mask(op: str, mask: Tensor, x: Tensor) -> None:
    """The mask of x [B, T, ...] is [B, T] with 1 = real token."""
    check_are_tensors(op, mask=mask)
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


def check_block_size(op: str, block_size: int, least: int = 1) -> None:
    """Blocks of DiagAttention have a whole number of tokens, and not none."""
    if not isinstance(block_size, Integral | torch.SymInt):
        raise ConfigError(f"{op}: block_size must be a whole number, got {block_size!r}")
    if block_size < least:
        raise ConfigError(f"{op}: block_size must be at least {least}, got {block_size}")


def check_dropout(op: str, probability: float) -> None:
    """What is left after dropout is scaled up, so something must be left."""
    if not isinstance(probability, Real | torch.SymFloat):
        raise ConfigError(f"{op}: dropout_p must be a number, got {probability!r}")
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


def has_tangents(*tensors: Tensor | None) -> bool:
    """Whether forward-mode differentiation (jvp, jacfwd) goes through one of these."""
    return any(tensor is not None and unpack_dual(tensor).tangent is not None for tensor in tensors)


def check_no_tangents(op: str, *tensors: Tensor | None, hint: str = _WITHOUT_KERNELS) -> None:
    """PyTorch drops the tangents of forward-mode differentiation at a custom op: its derivative would be zero."""
    if has_tangents(*tensors):
        raise ConfigError(f"{op}: this implementation has no forward-mode derivative (jvp, jacfwd)", hint)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """States, norms and softmax accumulate in float32, or in float64 when the inputs are."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def square_sums(x: Tensor) -> Tensor:
    """Σx² over the last dimension, in float32 at least: what an RMSNorm over the heads divides by."""
    return x.to(accumulation_dtype(x.dtype)).square().sum(dim=-1)


def serves_every_length(length: int) -> bool:
    """Whether a program is being made that is to serve every length: exported, or compiled again for another length."""
    return torch.compiler.is_exporting() or not has_static_value(length)


def block_length(size: int, length: int) -> int:
    """The length of blocks: at most that of the sequence, but for a program that serves every length."""
    return size if serves_every_length(length) else min(size, length)


def in_blocks(x: Tensor, size: int) -> Tensor:
    """[B, T, ...] -> [B, N, size, ...], zero-padded to a whole number of blocks.

    An exported program picks the tokens, with nothing to prove about their number; it has two blocks more than it
    needs, so that it must not ask whether there is one alone.
    """
    length = x.shape[1]
    if torch.compiler.is_exporting():
        starts = torch.arange((length - 1) // size + 3, device=x.device) * size
        tokens = starts[:, None] + torch.arange(size, device=x.device)
        return F.pad(x, (0, 0) * (x.dim() - 2) + (0, 1))[:, tokens.clamp(max=length)]
    blocks = number_of_blocks(size, length)
    padding = (0, blocks * size - length)
    if serves_every_length(length):  # as rows: of more dimensions PyTorch 2.13 errs in the strides of the gradient
        rows = x.reshape(*x.shape[:2], math.prod(x.shape[2:]))
        return F.pad(rows, (0, 0, *padding)).reshape(x.shape[0], blocks, size, *x.shape[2:])
    return F.pad(x, (0, 0) * (x.dim() - 2) + padding).unflatten(1, (blocks, size))


def number_of_blocks(size: int, length: int) -> int:
    """Rounded up, in the one form that a compiler recognises wherever it meets it."""
    return (length + size - 1) // size


def first_tokens(x: Tensor, length: int) -> Tensor:
    """The first tokens of x [B, ≥ length, ...]; an exported program cannot prove that there are so many."""
    if torch.compiler.is_exporting():
        return x.index_select(1, torch.arange(length, device=x.device))
    if serves_every_length(length):  # no slice: whether it is all of x would be a question with two programs
        rows = x.reshape(*x.shape[:2], math.prod(x.shape[2:]))
        return F.pad(rows, (0, 0, 0, length - x.shape[1])).reshape(x.shape[0], length, *x.shape[2:])
    return x[:, :length]


def zero_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """Set the rows [B, T, ...] of padded tokens to zero, whatever is in them: NaN times zero would be NaN."""
    if mask is None:
        return x
    return x.masked_fill(~mask.bool().reshape(*mask.shape, *[1] * (x.dim() - 2)), 0)
