"""Linear + cross entropy over chunks of tokens: the logits of one chunk are all that is ever in memory.

The loss is a number, so its gradients are known in the forward pass up to the factor that the backward pass brings. A
chunk's logits become their own gradient in place and are spent at once: on dx of the chunk and on the running sums of
dweight and dbias. No logits are saved, none are computed twice.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch import Tensor

from transnormer.errors import ConfigError
from transnormer.ops.kernels.launch import kernel_op
from transnormer.ops.shapes import accumulation_dtype

# Bytes of one chunk's logits. A GPU needs many rows at once: dx of 4,096 tokens of width 512 is 64 tiles of 128 x 256,
# half of what an H200 can work on.
_GPU_BYTES, _CPU_BYTES = 2**30, 2**26
# Rows of the buffer start at multiples of this many numbers, whatever the vocabulary: loads and products stay aligned.
_ALIGNMENT = 64

Results = tuple[Tensor, Tensor, Tensor, Tensor]


class ScoreRows(Protocol):
    """The part of the op between the matrix products, on logits [n, V] that still lack their bias."""

    def __call__(
        self, logits: Tensor, bias: Tensor | None, targets: Tensor, losses: Tensor, ignore_index: int, gradient: bool
    ) -> None:
        """Fill `losses` [n]; with `gradient`, overwrite the logits by softmax − onehot (zero in ignored rows)."""


class LinearCrossEntropy(Protocol):
    """The registered op: the sum of the losses, then those of its dx, dweight and dbias that `needs` asks for."""

    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        ignore_index: int,
        chunk_size: int | None,
        dtype: torch.dtype,
        needs: list[bool],
    ) -> Results: ...


def rows_per_chunk(vocabulary: int, dtype: torch.dtype, device: torch.device) -> int:
    """The power of two for which a chunk's logits take about 1 GiB on a GPU and 64 MiB elsewhere."""
    budget = _GPU_BYTES if device.type == "cuda" else _CPU_BYTES
    return 2 ** max(0, round(math.log2(budget / (vocabulary * dtype.itemsize))))


def walk(
    score: ScoreRows,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    ignore_index: int,
    chunk_size: int | None,
    dtype: torch.dtype,
    needs: list[bool],
) -> Results:
    """Losses and gradients chunk by chunk: products in `dtype`, sums over chunks in float32 (float64 for float64)."""
    tokens, vocabulary = len(x), len(weight)
    rows = min(chunk_size or rows_per_chunk(vocabulary, dtype, x.device), max(tokens, 1))
    needs_x, needs_weight, needs_bias = needs
    sums = accumulation_dtype(dtype)
    _, dx, dweight, dbias = _results(x, weight, bias, dtype, needs)
    dweight.zero_()
    dbias.zero_()
    losses = torch.empty(tokens, dtype=sums, device=x.device)
    x, weight = x.to(dtype), weight.to(dtype)
    bias = None if bias is None else bias.to(dtype)
    stride = -(-vocabulary // _ALIGNMENT) * _ALIGNMENT
    buffer = torch.empty((rows, stride), dtype=dtype, device=x.device)[:, :vocabulary]
    for start in range(0, tokens, rows):
        chunk = slice(start, min(start + rows, tokens))
        logits = buffer[: chunk.stop - start]
        torch.mm(x[chunk], weight.mT, out=logits)
        score(logits, bias, targets[chunk], losses[chunk], ignore_index, any(needs))
        if needs_x:
            torch.mm(logits, weight, out=dx[chunk])
        if needs_weight:
            _add_product(dweight, logits.mT, x[chunk])
        if needs_bias:
            dbias += logits.sum(dim=0, dtype=sums)
    return losses.sum(), dx, dweight, dbias


def score_rows(
    logits: Tensor, bias: Tensor | None, targets: Tensor, losses: Tensor, ignore_index: int, gradient: bool
) -> None:
    """`ScoreRows` in plain PyTorch, in place as far as the dtype allows."""
    scores = logits.to(losses.dtype)
    if bias is not None:
        scores += bias
    ignored = targets == ignore_index
    right = targets.masked_fill(ignored, 0).unsqueeze(1)
    log_sum = scores.logsumexp(dim=1, keepdim=True)
    losses.copy_((log_sum - scores.gather(1, right)).squeeze(1).masked_fill_(ignored, 0))
    if gradient:
        scores.sub_(log_sum).exp_()
        scores.scatter_(1, right, scores.gather(1, right) - 1)
        logits.copy_(scores.masked_fill_(ignored.unsqueeze(1), 0))


def make_op(name: str, score: ScoreRows) -> LinearCrossEntropy:
    """Register `walk` with a way to score rows as a custom op, opaque to compilers, with its fake and its gradient."""

    @kernel_op(name)
    def op(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        ignore_index: int,
        chunk_size: int | None,
        dtype: torch.dtype,
        needs: list[bool],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return walk(score, x, weight, bias, targets, ignore_index, chunk_size, dtype, needs)

    @op.register_fake
    def _(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        ignore_index: int,
        chunk_size: int | None,
        dtype: torch.dtype,
        needs: list[bool],
    ) -> Results:
        return _results(x, weight, bias, dtype, needs)

    op.register_autograd(_differentiate, setup_context=_save)
    return op


def _results(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, needs: list[bool]) -> Results:
    """Room for the loss and the gradients; a gradient that nobody needs is empty."""
    needs_x, needs_weight, needs_bias = needs
    sums = accumulation_dtype(dtype)
    return (
        torch.empty((), dtype=sums, device=x.device),
        torch.empty(x.shape if needs_x else (0,), dtype=dtype, device=x.device),
        torch.empty(weight.shape if needs_weight else (0,), dtype=sums, device=x.device),
        torch.empty(bias.shape if bias is not None and needs_bias else (0,), dtype=sums, device=x.device),
    )


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b; products of half precision are added in float32."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    elif a.is_cuda:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:  # the CPU has no product that widens
        total += a @ b


def _save(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
    x, weight, bias = inputs[:3]
    ctx.dtypes = (x.dtype, weight.dtype, None if bias is None else bias.dtype)
    ctx.mark_non_differentiable(*output[1:])
    # Otherwise the backward pass gets zeros of the size of each of them.
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output[1:])


def _differentiate(ctx: Any, factor: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled():
        raise ConfigError(
            "linear_cross_entropy: its gradients come from the forward pass and cannot be differentiated again",
            "drop create_graph=True, or take F.cross_entropy of the logits",
        )
    gradients: list[Tensor | None] = [None] * 8
    if factor is not None:
        for index, (saved, dtype) in enumerate(zip(ctx.saved_tensors, ctx.dtypes, strict=True)):
            if ctx.needs_input_grad[index]:
                wider = torch.promote_types(saved.dtype, dtype)
                gradients[index] = (saved.to(wider) * factor).to(dtype)
    return tuple(gradients)
