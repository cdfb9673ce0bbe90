"""Pure functions on tensors: the paper's attentions on [B, T, H, D], decode steps, features, norm, layers, loss."""

from transnormer.ops.decode_step import diag_decode_step, norm_decode_step
from transnormer.ops.diag_attention import diag_attention
from transnormer.ops.feed_forward import glu, mlp
from transnormer.ops.linear_cross_entropy import linear_cross_entropy, linear_cross_entropy_and_hits
from transnormer.ops.norm_attention import norm_attention
from transnormer.ops.normed_attention import normed_attention
from transnormer.ops.packed import PackedBounds, packed_bounds
from transnormer.ops.random_features import random_features
from transnormer.ops.rms_norm import rms_norm
from transnormer.ops.rotate import rotate
from transnormer.ops.rotated_attention import rotated_attention
from transnormer.ops.skinny_linear import gated, linears

__all__ = [
    "PackedBounds",
    "diag_attention",
    "diag_decode_step",
    "gated",
    "glu",
    "linear_cross_entropy",
    "linear_cross_entropy_and_hits",
    "linears",
    "mlp",
    "norm_attention",
    "norm_decode_step",
    "normed_attention",
    "packed_bounds",
    "random_features",
    "rms_norm",
    "rotate",
    "rotated_attention",
]
