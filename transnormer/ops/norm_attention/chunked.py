"""Linear attention on given features in chunks: quadratic inside a chunk, a running Σkvᵀ between chunks.

Time and memory are linear in T; the sum over chunks is kept in float32 whatever the dtype of the inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from transnormer.ops.autocast import without_autocast
from transnormer.ops.shapes import accumulation_dtype, block_length, first_tokens, in_blocks, serves_every_length

# Inside a chunk a token costs CHUNK·D, between chunks D·D: they balance at CHUNK = D, and 64 is the paper's head size.
CHUNK = 64
# Long sequences are scanned in segments, so that what is computed on the way stays in the cache of a CPU.
SEGMENT = 2048


def key_value_sums(k: Tensor, v: Tensor) -> Tensor:
    """What a sequence leaves behind: Σkvᵀ [B, H, D, E] over the tokens of k [B, T, H, D] and v [B, T, H, E]."""
    dtype = accumulation_dtype(k.dtype)
    with without_autocast(k.device):
        return torch.einsum("bthd,bthe->bhde", k.to(dtype), v.to(dtype))


def bidirectional_attention(q: Tensor, k: Tensor, v: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Every position reads the sum over all positions: q (kᵀv)."""
    memory = key_value_sums(k, v)
    if state is not None:
        memory = memory + state
    return torch.einsum("bthd,bhde->bthe", q, memory.to(q.dtype)), memory


def causal_attention(q: Tensor, k: Tensor, v: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Every position reads itself and what came before: tril(qkᵀ)v inside its chunk, q·Σkvᵀ from the chunks before."""
    if serves_every_length(q.shape[1]):  # such a program cannot know how many segments there are
        return _causal_segment(q, k, v, state)
    outs = []
    segments = (x.split(SEGMENT, dim=1) for x in (q, k, v))
    for q_segment, k_segment, v_segment in zip(*segments, strict=True):
        out, state = _causal_segment(q_segment, k_segment, v_segment, state)
        outs.append(out)
    assert state is not None
    return (outs[0] if len(outs) == 1 else torch.cat(outs, dim=1)), state


def _causal_segment(q: Tensor, k: Tensor, v: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    length = q.shape[1]
    chunk = block_length(CHUNK, length)
    # [B, H, N, C, D]; the zeros that fill up the last chunk are keys that add nothing.
    q, k, v = (in_blocks(x, chunk).permute(0, 3, 1, 2, 4) for x in (q, k, v))
    within = (q @ k.mT).tril() @ v
    sums = (k.mT @ v).to(accumulation_dtype(q.dtype))  # [B, H, N, D, E]
    first = torch.zeros_like(sums[:, :, :1]) if state is None else state.unsqueeze(2)
    # Not of sums[:, :, :-1]: a compiled program would have to know whether one chunk is left, or several.
    before = torch.cat([first, sums], dim=2)[:, :, :-1].cumsum(dim=2)
    out = within + q @ before.to(q.dtype)
    out = out.permute(0, 2, 3, 1, 4).flatten(1, 2)  # [B, N·C, H, E]
    return first_tokens(out, length), before[:, :, -1] + sums[:, :, -1]
