"""Nyströmformer: softmax attention through the means of m segments (Xiong et al. 2021).

softmax(QK̃ᵀ) · softmax(Q̃K̃ᵀ)⁺ · softmax(Q̃Kᵀ) · V, all scores over √D, Q̃ and K̃ being the landmarks: the outer factors
are ordinary attention between tokens and landmarks, so both run on PyTorch's fused kernels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transnormer.errors import ConfigError
from transnormer.mixers.components.landmarks import iterative_pseudo_inverse, segment_means, segments
from transnormer.mixers.components.matrix import identity_values, visible_pairs
from transnormer.mixers.components.precision import widened
from transnormer.mixers.contract import AttentionMixer, State, Traits, real_tokens
from transnormer.mixers.registry import register
from transnormer.ops.autocast import without_autocast
from transnormer.ops.shapes import zero_padding


@register("nystrom")
class NystromAttention(AttentionMixer):
    """Landmarks are means over the real tokens of each row; a sequence shorter than `num_landmarks` has one per token.

    `iterations` of the pseudo-inverse; `conv_kernel_size` (odd) adds the original's depthwise convolution of the values
    along the sequence, which the Long-Range-Arena comparisons leave out. `skyformer_compat` reproduces the code behind
    the published row: segments of the padded sequence in which padding counts as zeros, landmarks of padding alone that
    take part in the softmax, and a pseudo-inverse whose start depends on the whole batch.
    """

    traits = Traits(
        summary="Nyström approximation of softmax through segment means",
        paper="Xiong et al. 2021, Nyströmformer",
        cost="T",
    )

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        causal: bool,
        max_length: int,
        *,
        num_landmarks: int = 128,
        iterations: int = 6,
        conv_kernel_size: int | None = None,
        skyformer_compat: bool = False,
    ) -> None:
        super().__init__(hidden_size, num_heads, causal, max_length)
        if not 1 <= num_landmarks <= max_length:
            raise ConfigError(
                f"nystrom: num_landmarks must lie between 1 and max_length {max_length}, got {num_landmarks}",
                "set the option num_landmarks",
            )
        if iterations < 1:
            raise ConfigError(f"nystrom: iterations must be at least 1, got {iterations}", "the default is 6")
        if conv_kernel_size is not None and (conv_kernel_size < 1 or conv_kernel_size % 2 == 0):
            raise ConfigError(f"nystrom: conv_kernel_size must be odd, got {conv_kernel_size}", "the original has 33")
        self.num_landmarks = num_landmarks
        self.iterations = iterations
        self.skyformer_compat = skyformer_compat
        self.conv: nn.Conv2d | None = None
        if conv_kernel_size is not None:
            padding = (conv_kernel_size // 2, 0)
            self.conv = nn.Conv2d(
                num_heads, num_heads, (conv_kernel_size, 1), padding=padding, groups=num_heads, bias=False
            )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, state: State | None) -> Tensor:
        dtype = v.dtype
        with without_autocast(v.device):
            q, k, v = widened(q, k, v)
            out = self._approximate(q, k, v, mask)
            if self.conv is not None:
                # [B, H, T, D]: one filter per head, along the sequence.
                values = zero_padding(v, mask).transpose(1, 2)
                weight = self.conv.weight.to(values.dtype)
                out = out + F.conv2d(values, weight, padding=self.conv.padding, groups=self.num_heads)
        return self.o_proj(out.transpose(1, 2).flatten(-2).to(dtype))

    def matrix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """The product of the three factors; signed, for the inverse in the middle is."""
        if self.conv is not None:
            raise ConfigError(
                "nystrom with a convolution beside its attention has no attention matrix",
                "leave the option conv_kernel_size unset",
            )
        q, k, _ = self.project(x)
        q, k, values = widened(q, k, identity_values(q, self.num_heads))
        weights = self._approximate(q, k, values, mask)
        return weights.masked_fill(~visible_pairs(x, mask, causal=False), 0)

    def _approximate(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Of q, k [B, T, H, D] and v [B, T, H, E]: [B, H, T, E]."""
        # A row that is all padding counts as one token, so that no softmax is empty.
        lengths = real_tokens(q, mask).clamp(min=1)
        tokens = None if mask is None else torch.arange(q.shape[1], device=q.device) < lengths[:, None]
        if self.skyformer_compat:
            q_means, k_means = (_padded_means(zero_padding(x, mask), self.num_landmarks) for x in (q, k))
            landmarks = None
        else:
            count = min(self.num_landmarks, q.shape[1])
            q_means, k_means = (segment_means(x, lengths, count) for x in (q, k))
            landmarks = None if mask is None else segments(lengths, count)[1] > 0
        return self._through(q, k, v, q_means, k_means, tokens, landmarks)

    def _through(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        q_means: Tensor,
        k_means: Tensor,
        tokens: Tensor | None,
        landmarks: Tensor | None,
    ) -> Tensor:
        """The product of the three factors and V, [B, H, T, D]; `tokens` [B, T] and `landmarks` [B, m]: which exist."""
        q, k, v, q_means, k_means = (x.transpose(1, 2) for x in (q, k, v, q_means, k_means))  # [B, H, T, D]
        scores = q_means @ k_means.mT * self.head_dim**-0.5
        if landmarks is None:
            core = scores.softmax(dim=-1)
        else:
            exists = landmarks[:, None, None, :]
            core = scores.masked_fill(~exists, -torch.inf).softmax(dim=-1).masked_fill(~exists.mT, 0)
        inverse = iterative_pseudo_inverse(core, self.iterations, batch_scale=self.skyformer_compat)
        gathered = F.scaled_dot_product_attention(q_means, k, v, attn_mask=_over_keys(tokens))
        return F.scaled_dot_product_attention(q, k_means, inverse @ gathered, attn_mask=_over_keys(landmarks))


def _padded_means(x: Tensor, count: int) -> Tensor:
    """Means [B, count, H, D] over equal segments of x [B, T, H, D], lengthened by zeros to a multiple of `count`."""
    return F.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % count)).unflatten(1, (count, -1)).mean(dim=2)


def _over_keys(exists: Tensor | None) -> Tensor | None:
    """[B, S] -> [B, 1, 1, S], a mask that is the same for every head and query."""
    return None if exists is None else exists[:, None, None, :]
