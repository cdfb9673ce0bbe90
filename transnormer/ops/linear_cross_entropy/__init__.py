"""The loss of a language model, cross entropy of a linear layer's logits, without the tokens × vocabulary logits."""

from __future__ import annotations

import torch
from torch import Tensor

from transnormer.errors import ConfigError, did_you_mean
from transnormer.ops.backend import choose, load_kernel
from transnormer.ops.linear_cross_entropy.chunked import Results, make_op, score_rows
from transnormer.ops.shapes import check_are_tensors, check_no_tangents

REDUCTIONS = ("sum", "mean")

_KERNEL = load_kernel("linear_cross_entropy")
_TORCH = make_op("transnormer::linear_cross_entropy", score_rows)


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "sum",
    chunk_size: int | None = None,
    backend: str | None = None,
) -> Tensor:
    """Cross entropy of a linear layer's logits, which are never all in memory: −log softmax(xWᵀ + b) at `targets`.

    x is [N, d], weight [V, d], bias [V], targets [N]; returns a number in float32. `reduction` is `sum` or `mean`, over
    the targets that are not `ignore_index`; the mean over none is NaN. Logits of `chunk_size` tokens are in memory at a
    time; the default suits the device and the vocabulary. Under autocast the products are in its dtype; gradients
    arrive in the dtypes of x, weight and bias, and those of weight and bias are summed over chunks in float32. float64
    stays float64. Differentiable once.

    >>> import torch
    >>> x, weight, targets = torch.randn(10, 8), torch.randn(100, 8), torch.randint(0, 100, (10,))
    >>> loss = tn.ops.linear_cross_entropy(x, weight, None, targets, reduction="mean")
    >>> torch.allclose(loss, torch.nn.functional.cross_entropy(x @ weight.T, targets), rtol=1e-4)
    True
    """
    _check(x, weight, bias, targets, chunk_size)
    if reduction not in REDUCTIONS:
        raise ConfigError(f"linear_cross_entropy: unknown reduction '{reduction}'", did_you_mean(reduction, REDUCTIONS))
    by_logits = "use F.cross_entropy on the logits, which a model makes where it is given labels instead of targets"
    check_no_tangents("linear_cross_entropy", x, weight, bias, hint=by_logits)
    needs = [torch.is_grad_enabled() and tensor is not None and tensor.requires_grad for tensor in (x, weight, bias)]
    total = _run(x, weight, bias, targets, ignore_index, chunk_size, needs, backend)[0]
    if reduction == "sum":
        return total
    count = (targets != ignore_index).sum()
    return (total / count.clamp(min=1)).masked_fill(count == 0, torch.nan)


@torch.no_grad()
def linear_cross_entropy_and_hits(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    ignore_index: int = -100,
    chunk_size: int | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """The summed `linear_cross_entropy`, and how many targets are their row's argmax; without gradients.

    x [N, d], weight [V, d], bias [V] and targets [N] are those of `linear_cross_entropy`; the results are two numbers.

    >>> import torch
    >>> x, weight = torch.eye(3), 9 * torch.eye(3)
    >>> loss, hits = tn.ops.linear_cross_entropy_and_hits(x, weight, None, torch.tensor([0, 1, 0]))
    >>> hits.item()
    2
    """
    _check(x, weight, bias, targets, chunk_size)
    return _run(x, weight, bias, targets, ignore_index, chunk_size, [False, False, False], backend)[:2]


def _run(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    ignore_index: int,
    chunk_size: int | None,
    needs: list[bool],
    backend: str | None,
) -> Results:
    dtype = _product_dtype(x, weight)
    choice = choose("linear_cross_entropy", _KERNEL, backend, x.device, x=x, weight=weight)
    op = _TORCH
    if choice.backend == "triton":
        assert _KERNEL is not None
        op = _KERNEL.linear_cross_entropy
    return op(x, weight, bias, targets.long().contiguous(), ignore_index, chunk_size, dtype, needs)


def _product_dtype(x: Tensor, weight: Tensor) -> torch.dtype:
    """The dtype in which F.linear would multiply."""
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(x.device.type)
    if x.dtype != weight.dtype:
        raise ConfigError(
            f"linear_cross_entropy: x and weight must have one dtype, got {x.dtype} and {weight.dtype}",
            "convert one of them, or call it under torch.autocast",
        )
    return x.dtype


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, chunk_size: int | None) -> None:
    check_are_tensors("linear_cross_entropy", x=x, weight=weight, bias=bias, targets=targets)
    if chunk_size is not None and chunk_size < 1:
        raise ConfigError(f"linear_cross_entropy: chunk_size must be at least 1, got {chunk_size}")
    if x.dim() != 2:
        raise ConfigError(
            f"linear_cross_entropy: x must be [N, d], got shape {list(x.shape)}", "flatten batch and time"
        )
    if weight.dim() != 2 or weight.shape[1] != x.shape[1]:
        raise ConfigError(f"linear_cross_entropy: weight must be [V, {x.shape[1]}], got {list(weight.shape)}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ConfigError(f"linear_cross_entropy: bias must be [{weight.shape[0]}], got {list(bias.shape)}")
    if targets.shape != x.shape[:1] or targets.is_floating_point():
        raise ConfigError(
            f"linear_cross_entropy: targets must be [{x.shape[0]}] class indices, "
            f"got {list(targets.shape)} {targets.dtype}"
        )
