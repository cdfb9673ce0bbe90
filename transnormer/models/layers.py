"""The parts of a layer around its mixer: norms, the gated linear unit, the two-layer FFN, and the residual wiring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transnormer.mixers.components.batch_norm import BatchNorm
from transnormer.mixers.components.context import Context
from transnormer.mixers.components.linear import should_pack, should_share_a_kernel
from transnormer.mixers.components.packed_row import PackedRow
from transnormer.mixers.contract import Mixer, State
from transnormer.mixers.registry import build_mixer
from transnormer.models.config import TransNormerConfig
from transnormer.ops import gated, glu, mlp, rms_norm
from transnormer.ops.activations import ACTIVATIONS
from transnormer.ops.autocast import matmul_dtype
from transnormer.ops.feed_forward.small_width import is_small_width


class SimpleRMSNorm(nn.Module):
    """RMSNorm over the width without gain or bias: the norm of TransNormer's layers.

    In front of a matrix product (`before_product`) it rounds to the dtype that autocast would round to there: what the
    backward keeps is then bfloat16, not a copy of the float32 residual stream.
    """

    def __init__(self, *, before_product: bool = False) -> None:
        super().__init__()
        self.before_product = before_product

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, dtype=matmul_dtype(x) if self.before_product else None)


class ScaleNorm(nn.Module):
    """RMSNorm times one learned gain for the whole width (Nguyen and Salazar 2019): the norm of FLASH's layers."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.gain)

    def forward(self, x: Tensor) -> Tensor:
        return (rms_norm(x, eps=1e-5) * self.gain).to(x.dtype)


def build_norm(kind: str, hidden_size: int, *, before_product: bool = False) -> nn.Module:
    """A norm over the width by its name in the config; `before_product`: its result goes into matrix products only."""
    if kind == "layer":
        return nn.LayerNorm(hidden_size)
    if kind == "rms":
        return SimpleRMSNorm(before_product=before_product)
    if kind == "batch":
        return BatchNorm(hidden_size)
    return {"scale": ScaleNorm, "none": nn.Identity}[kind]()


def normed(norm: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """norm(x) of x [B, T, hidden_size]; of all norms only BatchNorm asks which tokens are real."""
    return norm(x, mask) if isinstance(norm, BatchNorm) else norm(x)


class GLU(nn.Module):
    """W3(act(W1 x) ⊙ W2 x) (paper, section 4.3; Shazeer 2020), biases on all three.

    With dropout inside, which the paper's has not, it takes the plain path: what is fused has none.
    """

    def __init__(self, hidden_size: int, intermediate_size: int, activation: str, dropout: float = 0.0) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size)
        self.up_proj = nn.Linear(hidden_size, intermediate_size)
        self.down_proj = nn.Linear(intermediate_size, hidden_size)
        self.activation = activation
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_proj, self.up_proj
        if self.training and self.dropout.p:
            return self.down_proj(self.dropout(ACTIVATIONS[self.activation](gate(x)) * up(x)))
        if should_pack(x, gate, up, self.down_proj):
            return self.in_two_products(x)
        if should_share_a_kernel(x, gate, up):
            return self.down_proj(gated(x, gate.weight, gate.bias, up.weight, up.bias, activation=self.activation))
        return self.down_proj(ACTIVATIONS[self.activation](gate(x)) * up(x))

    def in_two_products(self, x: Tensor) -> Tensor:
        """The same for tensor cores: gate and up in one matrix product, at a width they can work with.

        The paper's width int(8d/3) is odd for many d, and they need aligned rows. Zero units are added to the weights,
        which are small; act(0)·0 adds nothing.
        """
        width = self.up_proj.out_features
        missing = -width % (64 if width > 512 else 32)  # gate and up are then whole lines of 128 bytes in bfloat16
        first = (self.gate_proj, self.up_proj)
        weight = torch.cat([F.pad(layer.weight, (0, 0, 0, missing)) for layer in first])
        bias = torch.cat([F.pad(layer.bias, (0, missing)) for layer in first])
        y = glu(x, weight, bias, F.pad(self.down_proj.weight, (0, missing)), activation=self.activation)
        return y + self.down_proj.bias.to(y.dtype)


class FFN(nn.Module):
    """W2 act(W1 x), the feed-forward layer of the vanilla transformer; dropout, if any, between the two."""

    def __init__(self, hidden_size: int, intermediate_size: int, activation: str, dropout: float = 0.0) -> None:
        super().__init__()
        self.up_proj = nn.Linear(hidden_size, intermediate_size)
        self.down_proj = nn.Linear(intermediate_size, hidden_size)
        self.activation = activation
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        up, down = self.up_proj, self.down_proj
        drops = self.training and self.dropout.p > 0
        if not drops and should_pack(x, up, down) and is_small_width(x, down.weight, gated=False):
            return mlp(x, up.weight, up.bias, down.weight, down.bias, activation=self.activation)
        return down(self.dropout(ACTIVATIONS[self.activation](up(x))))


class Layer(nn.Module):
    """A mixer and a feed-forward layer, each with dropout, residual and a norm before (pre) or after (post) it."""

    # By their names in transformers, whose GradientCheckpointingLayer cannot be imported here: see `hub`.
    gradient_checkpointing = False
    _gradient_checkpointing_func: Callable[..., Any]

    def __init__(self, config: TransNormerConfig, mixer: str) -> None:
        super().__init__()
        self.mixer: Mixer = build_mixer(
            mixer,
            hidden_size=config.hidden_size,
            num_heads=config.num_attention_heads,
            causal=config.causal,
            max_length=config.max_position_embeddings,
            **config.options_of(mixer),
        )
        self.mixer_norm = build_norm(config.norm, config.hidden_size, before_product=config.norm_first)
        # Methods such as FLASH replace attention and feed-forward at once.
        self.feed_forward: nn.Module | None = None
        if self.mixer.traits.needs_ffn:
            assert config.intermediate_size is not None
            kind = GLU if config.feed_forward == "glu" else FFN
            self.feed_forward = kind(
                config.hidden_size, config.intermediate_size, config.hidden_act, config.activation_dropout
            )
            self.feed_forward_norm = build_norm(config.norm, config.hidden_size, before_product=config.norm_first)
        self.dropout = nn.Dropout(config.dropout)
        self.norm_first = config.norm_first

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        state: State | None = None,
        context: Context | None = None,
        row: PackedRow | None = None,
    ) -> tuple[Tensor, State | None]:
        """x [B, T, hidden_size], right-padded; returns it mixed, with the new state where one was given."""
        mixed = self.mixer(self._mixer_input(x, mask), mask, state, packed=True, context=context, cu_seqlens=row)
        if state is not None:
            mixed, state = mixed
        x = x + self.dropout(mixed)
        if not self.norm_first:
            x = normed(self.mixer_norm, x, mask)
        if self.feed_forward is None:
            return x, state
        if self.norm_first:
            return x + self.dropout(self.feed_forward(normed(self.feed_forward_norm, x, mask))), state
        return normed(self.feed_forward_norm, x + self.dropout(self.feed_forward(x)), mask), state

    def mixed(
        self, x: Tensor, mask: Tensor | None, context: Context | None = None, row: PackedRow | None = None
    ) -> Tensor:
        """x without a state; with gradient checkpointing the backward recomputes all but the input."""
        if self.gradient_checkpointing and self.training:
            return self._gradient_checkpointing_func(self, x, mask, None, context, row)[0]
        return self(x, mask, None, context, row)[0]

    def attention_matrix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """The weights [B, H, T, T] of its mixer in `forward` of the same input."""
        return self.mixer.attention_matrix(self._mixer_input(x, mask), mask, packed=True)

    def _mixer_input(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return normed(self.mixer_norm, x, mask) if self.norm_first else x
