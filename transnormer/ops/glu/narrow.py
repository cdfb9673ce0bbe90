"""Which feed-forward layers fit on chip, weights and all, so that one kernel can compute them."""

from __future__ import annotations

import torch
from torch import Tensor

from transnormer.ops.autocast import matmul_dtype

WIDEST, WIDEST_HIDDEN = 64, 128


def is_narrow(x: Tensor, weight_out: Tensor) -> bool:
    """Whether a layer of x [..., D] with weight_out [D_out, F] does, in half precision."""
    out, hidden = weight_out.shape
    return matmul_dtype(x) != torch.float32 and max(x.shape[-1], out) <= WIDEST and hidden <= WIDEST_HIDDEN
