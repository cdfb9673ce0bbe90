"""Model FLOPs of a language model, and the share of a device's peak that they are.

A training step on N tokens needs 6·P·N + 3·A·N operations. P are the parameters in matrices that every token is
multiplied with (all linear layers and the output projection; an embedding is looked up, not multiplied): two operations
each forward and four backward. A are the operations a token inside the attentions forward; backward takes twice that.
Over all heads, with d the model's width, D the size of a head, T the length and w the block, a layer adds to A

    softmax        4·d·T      QKᵀ and PV; causal: the visible half, 4·d·(T + 1)/2
    diag           4·d·w      the same inside blocks; causal: 4·d·(w + 1)/2
    norm           4·d·D      φ(K)ᵀV and φ(Q)S
    linear_elu     4·d·(D+1)  the same with the row sum as one more column

What an implementation computes beyond that (recomputed scores, the quadratic part inside a chunk) is no model FLOP.
"""

from __future__ import annotations

from torch import nn

from transnormer.models.config import TransNormerConfig

# Dense bf16 operations per second by what a device's name contains, from NVIDIA's data sheets; the first match counts.
_PEAKS = {
    "H200": 989.4e12,
    "H100 PCIe": 756e12,
    "H100": 989.4e12,
    "A100": 312e12,
}


def matrix_parameters(model: nn.Module) -> int:
    """Parameters of linear layers; an output projection counts, though it may share the embedding's table."""
    return sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear))


def attention_flops(config: TransNormerConfig, length: int) -> float | None:
    """Operations a token inside all attentions of one forward pass; None where a mixer's are not known here."""
    assert config.mixers is not None
    each = [_mixer_flops(mixer, config, length) for mixer in config.mixers]
    return None if None in each else float(sum(flops for flops in each if flops is not None))


def _mixer_flops(mixer: str, config: TransNormerConfig, length: int) -> float | None:
    width = config.hidden_size
    head = width // config.num_attention_heads
    if mixer == "norm":
        return 4 * width * head
    if mixer == "linear_elu":
        return 4 * width * (head + 1)
    if mixer == "softmax":
        seen = length
    elif mixer == "diag":
        seen = min(length, config.attention_chunk_size)
    else:
        return None
    return 4 * width * ((seen + 1) / 2 if config.causal else seen)


def training_flops(model: nn.Module, config: TransNormerConfig, tokens: int, length: int) -> float | None:
    """Operations of one training step (see above); None where an attention's are not known."""
    attention = attention_flops(config, length)
    return None if attention is None else (6 * matrix_parameters(model) + 3 * attention) * tokens


def peak_flops(device_name: str) -> float | None:
    """The peak of a device, or None for one that is not in the table."""
    return next((peak for name, peak in _PEAKS.items() if name in device_name), None)
