"""Which feed-forward layers are of small width: their weights fit shared memory, and one kernel computes them."""

from __future__ import annotations

import torch
from torch import Tensor

from transnormer.ops.autocast import matmul_dtype

WIDEST, WIDEST_HIDDEN = 64, 128
# Gated layers that are only inferred: at 102,400 tokens 128 -> 192 -> 128 takes 62 us on an H200, where two products
# and a kernel take 87. A layer without a gate, which has less between its products, would take 101 instead of 87.
_WIDEST_INFERRED, _WIDEST_INFERRED_HIDDEN = 128, 256


def is_small_width(x: Tensor, weight_out: Tensor, *, gated: bool) -> bool:
    """Whether a layer of x [..., D] with weight_out [D_out, F] is, in half precision."""
    widest, widest_hidden = WIDEST, WIDEST_HIDDEN
    if gated and not torch.is_grad_enabled():
        widest, widest_hidden = _WIDEST_INFERRED, _WIDEST_INFERRED_HIDDEN
    out, hidden = weight_out.shape
    return matmul_dtype(x) != torch.float32 and max(x.shape[-1], out) <= widest and hidden <= widest_hidden
