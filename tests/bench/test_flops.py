"""The FLOP formula against PyTorch's own counter, and the peaks it is divided by."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import transnormer as tn
from transnormer.bench.flops import attention_flops, peak_flops, training_flops

LENGTH, BATCH = 128, 2


@pytest.mark.parametrize("method", ["t1", "t2", "vanilla", "linear_elu"])
def test_the_formula_is_what_a_step_computes(method):
    """Bidirectional, where plain PyTorch computes no hidden score and recomputes nothing: the counts are equal."""
    config = tn.preset(
        f"{method}-mlm",
        hidden_size=64,
        intermediate_size=128,  # no padding to a multiple of anything
        num_hidden_layers=4,
        num_attention_heads=4,
        vocab_size=100,
        max_position_embeddings=LENGTH,
        dropout=0.0,
        attention_dropout=0.0,
    )
    model = tn.TransNormerForMaskedLM(config)
    ids = torch.randint(0, 100, (BATCH, LENGTH))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids).loss.backward()
    assert counter.get_total_flops() == training_flops(model, config, BATCH * LENGTH, LENGTH)


def test_causal_attention_counts_what_is_visible():
    vanilla, t2 = (tn.preset(f"{name}-tiny", num_hidden_layers=2, hidden_size=64) for name in ("vanilla", "t2"))
    pairs = 100 * 101 / 2  # of queries and keys
    assert attention_flops(vanilla, 100) == pytest.approx(2 * 4 * 64 * pairs / 100)
    diag, norm = 4 * 64 * 65 / 2, 4 * 64 * 16
    assert attention_flops(t2, 8192) == diag + norm
    # A sequence shorter than a block is one short block.
    assert attention_flops(t2, 10) == 4 * 64 * 11 / 2 + norm


def test_what_is_not_known_has_no_number():
    assert attention_flops(tn.preset("performer-tiny"), 100) is None
    assert training_flops(torch.nn.Linear(2, 2), tn.preset("performer-tiny"), 10, 10) is None
    assert peak_flops("Quadro FX 5600") is None
    assert peak_flops("NVIDIA H200") == peak_flops("NVIDIA H100 80GB HBM3") == 989.4e12
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
