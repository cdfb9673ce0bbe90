"""Pure functions on tensors: the paper's two attentions on [B, T, H, D], features, norm, rotation, layers, loss."""

from transnormer.ops.diag_attention import diag_attention
from transnormer.ops.glu import glu
from transnormer.ops.joined_attention import joined_attention
from transnormer.ops.linear_cross_entropy import linear_cross_entropy
from transnormer.ops.mlp import mlp
from transnormer.ops.norm_attention import norm_attention
from transnormer.ops.random_features import random_features
from transnormer.ops.rms_norm import rms_norm
from transnormer.ops.rotate import rotate

__all__ = [
    "diag_attention",
    "glu",
    "joined_attention",
    "linear_cross_entropy",
    "mlp",
    "norm_attention",
    "random_features",
    "rms_norm",
    "rotate",
]
