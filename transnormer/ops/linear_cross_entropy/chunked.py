"""Linear + cross entropy over chunks of tokens: the logits of one chunk are all that is ever in memory.

The loss is a number, so its gradients are known in the forward pass up to the factor that the backward pass brings. A
chunk's logits become their own gradient in place and are spent at once: on dx of the chunk and on the running sums of
dweight and dbias. No logits are saved, none are computed twice.

A vocabulary is seldom a multiple of anything (GPT-2's has 50,257 tokens), and matrix products with an odd side leave
the tensor cores' fast path: on an H200 a step takes 75 instead of 19 ms. So weight, bias and logits are padded to a
multiple of 64 columns inside the op; padding takes no part in the softmax, and nobody outside sees it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from transnormer.errors import ConfigError
from transnormer.ops.kernels.launch import kernel_op
from transnormer.ops.shapes import accumulation_dtype

# Bytes of one chunk's logits. A GPU needs many rows at once: dx of 4,096 tokens of width 512 is 64 tiles of 128 x 256,
# half of what an H200 can work on.
_GPU_BYTES, _CPU_BYTES = 2**30, 2**26
_LEAST_GPU_ROWS = 4096
_ALIGNMENT = 64

# The sum of the losses, the number of targets that are the argmax of their row, dx, dweight, dbias.
Results = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


# The part of the op between the matrix products: `score_rows`, here or in the kernel.
ScoreRows = Callable[..., None]


def rows_per_chunk(vocabulary: int, dtype: torch.dtype, device: torch.device) -> int:
    """The power of two for which a chunk's logits take about 1 GiB on a GPU and 64 MiB elsewhere."""
    on_gpu = device.type == "cuda"
    budget, least = (_GPU_BYTES, _LEAST_GPU_ROWS) if on_gpu else (_CPU_BYTES, 1)
    return max(least, 2 ** max(0, round(math.log2(budget / (vocabulary * dtype.itemsize)))))


def padded_columns(vocabulary: int) -> int:
    """Columns of the logits inside the op."""
    return -(-vocabulary // _ALIGNMENT) * _ALIGNMENT


def scan(
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
    columns = padded_columns(vocabulary)
    rows = min(chunk_size or rows_per_chunk(vocabulary, dtype, x.device), max(tokens, 1))
    needs_x, needs_weight, needs_bias = needs
    sums = accumulation_dtype(dtype)
    losses = torch.empty(tokens, dtype=sums, device=x.device)
    correct = torch.empty(0 if any(needs) else tokens, dtype=torch.int32, device=x.device)
    dx = torch.empty(x.shape if needs_x else (0,), dtype=dtype, device=x.device)
    dweight = torch.zeros((columns, x.shape[1]) if needs_weight else (0,), dtype=sums, device=x.device)
    dbias = torch.zeros(columns if needs_bias else 0, dtype=sums, device=x.device)
    x, weight = x.to(dtype), _with_rows(weight.to(dtype), columns)
    bias = None if bias is None else _with_rows(bias.to(dtype), columns)
    buffer = torch.empty((rows, columns), dtype=dtype, device=x.device)
    for start in range(0, tokens, rows):
        chunk = slice(start, min(start + rows, tokens))
        logits = buffer[: chunk.stop - start]
        torch.mm(x[chunk], weight.mT, out=logits)
        score(logits, bias, targets[chunk], losses[chunk], correct[chunk], ignore_index, vocabulary, any(needs))
        if needs_x:
            torch.mm(logits, weight, out=dx[chunk])
        if needs_weight:
            _add_product(dweight, logits.mT, x[chunk])
        if needs_bias:
            dbias += logits.sum(dim=0, dtype=sums)
    return losses.sum(), correct.sum(), dx, dweight[:vocabulary], dbias[:vocabulary]


def score_rows(
    logits: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    losses: Tensor,
    correct: Tensor,
    ignore_index: int,
    vocabulary: int,
    gradient: bool,
) -> None:
    """Fill `losses` [n] from logits [n, padded V] that still lack their bias, in place as far as the dtype allows.

    With `gradient`, overwrite the logits by softmax − onehot, zero in ignored rows and in padding. Without, fill
    `correct` [n]: 1 where the target is the argmax of its row.
    """
    scores = logits[:, :vocabulary].to(losses.dtype)
    if bias is not None:
        scores += bias[:vocabulary]
    ignored = targets == ignore_index
    right = targets.masked_fill(ignored, 0).unsqueeze(1)
    log_sum = scores.logsumexp(dim=1, keepdim=True)
    losses.copy_((log_sum - scores.gather(1, right)).squeeze(1).masked_fill_(ignored, 0))
    if not gradient:
        correct.copy_((scores.argmax(dim=1) == right.squeeze(1)) & ~ignored)
        return
    scores.sub_(log_sum).exp_()
    scores.scatter_(1, right, scores.gather(1, right) - 1)
    logits[:, :vocabulary] = scores.masked_fill_(ignored.unsqueeze(1), 0)
    logits[:, vocabulary:] = 0


def _with_rows(x: Tensor, rows: int) -> Tensor:
    """Padded with zeros to so many rows."""
    if len(x) == rows:
        return x
    padded = x.new_zeros((rows, *x.shape[1:]))
    padded[: len(x)] = x
    return padded


def make_op(name: str, score: ScoreRows) -> Callable[..., Results]:
    """Register `scan` with a way to score rows as a custom op, opaque to compilers, with its fake and its gradient."""

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
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return scan(score, x, weight, bias, targets, ignore_index, chunk_size, dtype, needs)

    op.register_fake(_results)
    op.register_autograd(_differentiate, setup_context=_save)
    return op


def _results(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    ignore_index: int,
    chunk_size: int | None,
    dtype: torch.dtype,
    needs: list[bool],
) -> Results:
    """The shapes of what `scan` returns; a gradient that nobody needs is empty."""
    needs_x, needs_weight, needs_bias = needs
    sums = accumulation_dtype(dtype)
    return (
        torch.empty((), dtype=sums, device=x.device),
        torch.empty((), dtype=torch.int64, device=x.device),
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
    ctx.save_for_backward(*output[2:])


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
