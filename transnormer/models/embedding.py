"""What makes vectors of ids: a linear map, or a table whose gradient, if it is small and on a GPU, is a matrix product.

Bytes, pixels and operators are few, so every row of the table receives the gradients of thousands of tokens. Added one
by one they wait for each other (a fifth of the step of a small model on images, which are mostly black); one product
with the one-hot tokens adds them in a fixed order.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transnormer.ops.shapes import accumulation_dtype

LARGEST_SMALL_VOCABULARY = 512


class NumberEmbedding(nn.Linear):
    """Ids that are amounts, such as the brightness of a pixel: one linear map of the number, scaled to [-1, 1]."""

    def __init__(self, largest: int, size: int) -> None:
        super().__init__(1, size)
        self.largest = largest

    def forward(self, input: Tensor) -> Tensor:
        numbers = input.unsqueeze(-1).to(accumulation_dtype(self.weight.dtype)) * (2 / self.largest) - 1
        return super().forward(numbers.to(self.weight.dtype))


class TokenEmbedding(nn.Embedding):
    """nn.Embedding in all but the way its gradient is computed."""

    def forward(self, input: Tensor) -> Tensor:
        if input.is_cuda and self.num_embeddings <= LARGEST_SMALL_VOCABULARY:
            return lookup(self.weight, input)
        return super().forward(input)


def lookup(weight: Tensor, ids: Tensor) -> Tensor:
    """weight[ids]; under autocast the gradient is summed as those of matrices are, from bfloat16 terms."""
    autocast = torch.is_autocast_enabled(weight.device.type)
    dtype = torch.get_autocast_dtype(weight.device.type) if autocast else weight.dtype
    return _Lookup.apply(weight, ids, dtype)


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.rows, ctx.dtype = weight.shape[0], dtype
        return F.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        [gradient], [ids] = gradients, ctx.saved_tensors
        index = torch.arange(ctx.rows, device=ids.device)
        one_hot = (ids.flatten().unsqueeze(-1) == index).to(ctx.dtype)  # [N, rows]
        summed = one_hot.mT @ gradient.flatten(0, -2).to(ctx.dtype)
        return summed.to(gradient.dtype), None, None
