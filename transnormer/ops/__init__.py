"""Pure functions on tensors: the two attentions of the paper on [B, T, H, D], norm, rotation, gated unit and loss."""

from transnormer.ops.diag_attention import diag_attention
from transnormer.ops.glu import glu
from transnormer.ops.joined_attention import joined_attention
from transnormer.ops.linear_cross_entropy import linear_cross_entropy
from transnormer.ops.norm_attention import norm_attention
from transnormer.ops.rms_norm import rms_norm
from transnormer.ops.rotate import rotate

__all__ = ["diag_attention", "glu", "joined_attention", "linear_cross_entropy", "norm_attention", "rms_norm", "rotate"]
