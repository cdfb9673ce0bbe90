"""Linear attention on given features in chunks: quadratic inside a chunk, a running Σkvᵀ between chunks.

Time and memory are linear in T; the sum over chunks is kept in float32 whatever the dtype of the inputs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from transnormer.ops.shapes import accumulation_dtype

# Inside a chunk a token costs CHUNK·D, between chunks D·D: they balance at CHUNK = D, and 64 is the paper's head size.
CHUNK = 64
# Long sequences are scanned in segments, so that what is computed on the way stays in the cache of a CPU.
SEGMENT = 2048


def bidirectional_attention(q: Tensor, k: Tensor, v: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Every position reads the sum over all positions: q (kᵀv)."""
    dtype = accumulation_dtype(q.dtype)
    memory = torch.einsum("bthd,bthe->bhde", k.to(dtype), v.to(dtype))
    if state is not None:
        memory = memory + state
    return torch.einsum("bthd,bhde->bthe", q, memory.to(q.dtype)), memory


def causal_attention(q: Tensor, k: Tensor, v: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Every position reads itself and what came before: tril(qkᵀ)v inside its chunk, q·Σkvᵀ from the chunks before."""
    outs = []
    segments = (x.split(SEGMENT, dim=1) for x in (q, k, v))
    for q_segment, k_segment, v_segment in zip(*segments, strict=True):
        out, state = _causal_segment(q_segment, k_segment, v_segment, state)
        outs.append(out)
    assert state is not None
    return (outs[0] if len(outs) == 1 else torch.cat(outs, dim=1)), state


def _causal_segment(q: Tensor, k: Tensor, v: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    length = q.shape[1]
    chunk = min(CHUNK, length)
    q, k, v = (_in_chunks(x, chunk) for x in (q, k, v))  # [B, H, N, C, D]
    within = (q @ k.mT).tril() @ v
    sums = (k.mT @ v).to(accumulation_dtype(q.dtype))  # [B, H, N, D, E]
    first = torch.zeros_like(sums[:, :, :1]) if state is None else state.unsqueeze(2)
    before = torch.cat([first, sums[:, :, :-1]], dim=2).cumsum(dim=2)
    out = within + q @ before.to(q.dtype)
    out = out.permute(0, 2, 3, 1, 4).flatten(1, 2)  # [B, N·C, H, E]
    return out[:, :length], before[:, :, -1] + sums[:, :, -1]


def _in_chunks(x: Tensor, chunk: int) -> Tensor:
    """[B, T, H, D] -> [B, H, N, C, D], zero-padded to a whole number of chunks (zero keys add nothing)."""
    x = F.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % chunk))
    return x.unflatten(1, (-1, chunk)).permute(0, 3, 1, 2, 4)
