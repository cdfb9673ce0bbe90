"""Linear layers, and when they may be computed otherwise than by calling them: packed into one product, or scaled."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class XavierLinear(nn.Linear):
    """A projection that starts at Xavier uniform with a gain, as fairseq's attention does."""

    def __init__(self, in_features: int, out_features: int, *, gain: float = 1.0, zero_bias: bool = False) -> None:
        self.gain = gain
        self.zero_bias = zero_bias
        super().__init__(in_features, out_features)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.xavier_uniform_(self.weight, gain=self.gain)
        if self.zero_bias:
            nn.init.zeros_(self.bias)


def are_plain(*layers: nn.Module) -> bool:
    """Whether these layers are nothing but weight and bias.

    One that has been replaced (by a low-rank adapter, by a quantised layer), whose weight has (by a quantised or a
    distributed tensor) or that is hooked must be called: only it knows what it computes. The question is asked inside
    compiled models, so it is put in words that every compiler knows.
    """
    return all(
        (type(layer) is nn.Linear or type(layer) is XavierLinear)
        and (type(layer.weight) is nn.Parameter or type(layer.weight) is Tensor)
        and not (layer._forward_hooks or layer._forward_pre_hooks or hasattr(layer, "_hf_hook"))  # accelerate's hooks
        for layer in layers
    )


def have_biases(*layers: nn.Module) -> bool:
    """Whether all layers have a bias, as ours do."""
    return all(layer.bias is not None for layer in layers)


def should_pack(x: Tensor, *layers: nn.Module) -> bool:
    """Whether one product of x [B, T, d] with the packed weights pays: on tensor cores, but not for a single token."""
    return x.is_cuda and x.shape[-2] > 1 and are_plain(*layers) and have_biases(*layers)


def should_share_a_kernel(x: Tensor, *layers: nn.Module) -> bool:
    """Whether layers on the same x [B, 1, d], one token of each sequence, may be one op of `ops.skinny_linear`."""
    return x.shape[-2] == 1 and not torch.is_grad_enabled() and are_plain(*layers) and have_biases(*layers)
