"""Pure functions on tensors [B, T, H, D]: the two attentions of the paper and the norm between them."""

from transnormer.ops.diag_attention import diag_attention
from transnormer.ops.norm_attention import norm_attention
from transnormer.ops.rms_norm import rms_norm

__all__ = ["diag_attention", "norm_attention", "rms_norm"]
