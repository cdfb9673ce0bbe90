"""Performer: softmax attention by positive random features, FAVOR+ (Choromanski et al. 2021).

φ(x) = exp(Wx̂ - ‖x̂‖²/2 - stabiliser) + ε with x̂ = x·D^(-1/4): φ(q)·φ(k) estimates exp(q·k/√D). A stabiliser that is the
same for all keys cancels in the quotient but for ε, and its choice decides whether the method is causal:

* bidirectional: the largest Wk̂ over the real keys of a row and head, as published;
* causal: that maximum would tell every token about the future, so there is none. None is needed: exp(w·k̂ - ‖k̂‖²/2)
  has mean 1 over w whatever the key, which makes 1 the natural unit of ε, and is at most exp(‖w‖²/2); features whose
  bound is too large for float32 are scaled down in the keys and up in the queries by a constant.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from transnormer.errors import ConfigError
from transnormer.mixers.components.initialisation import is_loaded
from transnormer.mixers.components.matrix import pair_scores, visible_pairs
from transnormer.mixers.components.precision import in_range
from transnormer.mixers.contract import AttentionMixer, State, Traits, real_tokens
from transnormer.mixers.linear_elu import with_ones
from transnormer.mixers.registry import register
from transnormer.ops import norm_attention, random_features
from transnormer.ops.shapes import accumulation_dtype, zero_padding

# A causal key feature stays below exp(40): the sum over any sequence fits float32, which ends at exp(88).
_LARGEST_EXPONENT = 40.0
# Up to so many columns the causal kernel's backward undoes its state, token by token. After a key whose features are
# some exp(20) times as large as the others', that would leave nothing of the others.
_UNDONE = 64


def orthogonal_gaussian(rows: int, columns: int, generator: torch.Generator | None = None) -> Tensor:
    """Rows that are each N(0, I), orthogonal within blocks of `columns` rows: [rows, columns]."""
    # Whatever dtype a model is loaded in: LAPACK knows no half precision.
    drawn: dict[str, Any] = {"generator": generator, "device": "cpu", "dtype": torch.float32}
    blocks = []
    for _ in range(-(-rows // columns)):
        basis, triangle = torch.linalg.qr(torch.randn(columns, columns, **drawn))
        # LAPACK's signs are not random; with those of R's diagonal the basis is uniform over all rotations.
        blocks.append((basis * triangle.diagonal().sign()).T)
    norms = torch.randn(rows, columns, **drawn).norm(dim=1, keepdim=True)
    return torch.cat(blocks)[:rows] * norms


@register("performer")
class PerformerAttention(AttentionMixer):
    """φ(Q)(φ(K)ᵀV) / φ(Q)Σφ(K).

    W has `num_features` rows, shared by the heads. It is drawn when the layer is built, from `seed` (None: from torch's
    generator, as the weights are), and then fixed; with `redraw` each training step uses a fresh Gaussian W instead, as
    TransNormer's authors did. `epsilon` keeps every feature, and so the denominator, above zero. `skyformer_compat`
    reproduces the code behind the published Long-Range-Arena row: q and k are scaled twice (the kernel is exp(q·k/D)),
    the stabiliser is the maximum over the whole batch, and padded keys, set to zero, count in the denominator.
    """

    traits = Traits(
        summary="softmax kernel by positive orthogonal random features (FAVOR+)",
        paper="Choromanski et al. 2021, Rethinking Attention with Performers",
        cost="T",
        cache="linear_attention",
    )
    projection: Tensor

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        causal: bool,
        max_length: int,
        *,
        num_features: int = 128,
        redraw: bool = False,
        seed: int | None = None,
        epsilon: float = 1e-4,
        skyformer_compat: bool = False,
    ) -> None:
        super().__init__(hidden_size, num_heads, causal, max_length)
        if num_features < 1:
            raise ConfigError(f"performer: num_features must be at least 1, got {num_features}")
        if epsilon <= 0:
            raise ConfigError(f"performer: epsilon must be positive, got {epsilon}", "the default is 1e-4")
        if skyformer_compat and causal:
            raise ConfigError(
                "performer: skyformer_compat has no causal form: its stabiliser sees the future",
                "leave skyformer_compat off",
            )
        self.redraw = redraw
        self.seed = seed
        self.epsilon = epsilon
        self.skyformer_compat = skyformer_compat
        self.register_buffer("projection", torch.empty(num_features, self.head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if is_loaded(self.projection):
            return
        generator = None if self.seed is None else torch.Generator().manual_seed(self.seed)
        rows, columns = self.projection.shape
        self.projection.copy_(orthogonal_gaussian(rows, columns, generator))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, state: State | None
    ) -> Tensor | tuple[Tensor, State]:
        dtype = v.dtype
        q, k, v = in_range(q, k, v)
        if self.skyformer_compat:
            k, v, mask = zero_padding(k, mask), zero_padding(v, mask), None
        weight = self.projection.to(accumulation_dtype(q.dtype))
        if self.redraw and self.training:
            weight = torch.randn_like(weight)
        out, memory = norm_attention(
            self._query_features(q, weight),
            self._key_features(k, weight, mask),
            with_ones(v),
            causal=self.causal,
            feature_map="identity",
            mask=mask,
            state=state.get("memory") if state else None,
            return_state=True,
            backend="torch" if self.causal and max(weight.shape[0], self.head_dim + 1) <= _UNDONE else None,
        )
        # Zero only at padded positions: features are at least epsilon.
        total = out[..., -1:]
        y = self.o_proj((out[..., :-1] / total.masked_fill(total == 0, 1)).flatten(-2).to(dtype))
        if state is None:
            return y
        return y, {"length": state["length"] + real_tokens(q, mask), "memory": memory}

    def matrix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, _ = self.project(x)
        weight = self.projection.to(accumulation_dtype(q.dtype))
        visible = visible_pairs(x, mask, causal=self.causal)
        if self.skyformer_compat:  # padded keys, as zeros, are in the row sums
            k, mask = zero_padding(k, mask), None
        scores = pair_scores(self._query_features(q, weight), self._key_features(k, weight, mask))
        total = scores.masked_fill(~visible_pairs(x, mask, causal=self.causal), 0).sum(dim=-1, keepdim=True)
        return scores.masked_fill(~visible, 0) / total.masked_fill(total == 0, 1)

    def _query_features(self, q: Tensor, weight: Tensor) -> Tensor:
        """[B, T, H, num_features]; each query is stabilised by itself, which is causal and cancels."""
        offset = _excess(weight) if self.causal else None
        return self._features(q, weight, scope="token", offset=offset)

    def _key_features(self, k: Tensor, weight: Tensor, mask: Tensor | None) -> Tensor:
        if self.causal:
            return self._features(k, weight, scope="none", offset=-_excess(weight), mask=mask)
        return self._features(k, weight, scope="batch" if self.skyformer_compat else "sequence", mask=mask)

    def _features(
        self, x: Tensor, weight: Tensor, *, scope: str, offset: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        scale = self.head_dim ** (-0.5 if self.skyformer_compat else -0.25)
        return random_features(x, weight, scale=scale, epsilon=self.epsilon, scope=scope, offset=offset, mask=mask)


def _excess(weight: Tensor) -> Tensor:
    """How far the bound ‖w‖²/2 of each feature's exponent lies above the largest allowed: [num_features]."""
    return (weight.square().sum(dim=-1) / 2 - _LARGEST_EXPONENT).clamp(min=0)
