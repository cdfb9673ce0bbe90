"""BatchNorm over the real tokens of a batch, against torch.nn.BatchNorm1d of just those tokens."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from transnormer.errors import ConfigError
from transnormer.mixers.components.batch_norm import BatchNorm
from transnormer.mixers.registry import build_mixer
from transnormer.models.config import TransNormerConfig
from transnormer.models.heads import TransNormerForSequenceClassification

WIDTH = 6


def batch(seed: int, masked: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    x = 3 * torch.randn(4, 7, WIDTH, generator=generator, dtype=torch.float64) + 5
    lengths = torch.tensor([7, 1, 4, 3])
    return x, torch.arange(7) < lengths[:, None] if masked else None


@pytest.mark.parametrize("masked", [True, False])
def test_it_is_torchs_of_the_real_tokens(masked: bool) -> None:
    ours, theirs = BatchNorm(WIDTH).double(), nn.BatchNorm1d(WIDTH).double()
    for norm in (ours, theirs):
        nn.init.uniform_(norm.weight, generator=torch.Generator().manual_seed(1))
    for seed in range(3):
        x, mask = batch(seed, masked)
        real = torch.ones(4, 7, dtype=torch.bool) if mask is None else mask
        x.requires_grad_()
        found, expected = ours(x, mask)[real], theirs(x[real])
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        for a, b in zip(
            torch.autograd.grad(found.pow(3).sum(), [x, ours.weight, ours.bias]),
            torch.autograd.grad(expected.pow(3).sum(), [x, theirs.weight, theirs.bias]),
            strict=True,
        ):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    x, mask = batch(9, masked)
    before = ours.running_mean.clone()
    torch.testing.assert_close(ours.eval()(x, mask), theirs.eval()(x.flatten(0, 1)).view_as(x))
    assert torch.equal(ours.running_mean, before)


@pytest.mark.parametrize("masked", [True, False])
def test_its_gradients_are_those_of_the_whole_result(masked: bool) -> None:
    """Padding too has a result, with the statistics of real tokens."""
    x, mask = batch(0, masked)
    norm = BatchNorm(WIDTH, momentum=0.0).double()
    nn.init.uniform_(norm.weight, generator=torch.Generator().manual_seed(1))

    def result(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(norm, {"weight": weight, "bias": bias}, (x, mask))

    assert torch.autograd.gradcheck(result, (x.requires_grad_(), norm.weight, norm.bias))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_compiler_finds_the_same_gradients(dtype: torch.dtype) -> None:
    x, mask = batch(0, masked=True)

    def gradients(compiled: bool) -> list[torch.Tensor]:
        norm = BatchNorm(WIDTH)
        norm.compile(fullgraph=True, backend="inductor" if compiled else "eager")
        leaf = x.to(dtype).requires_grad_()
        return list(torch.autograd.grad(norm(leaf, mask).float().pow(3).sum(), [leaf, norm.weight, norm.bias]))

    for ours, theirs in zip(gradients(True), gradients(False), strict=True):
        assert theirs.any()
        torch.testing.assert_close(ours, theirs, rtol=2e-2 if dtype == torch.bfloat16 else 1e-4, atol=1e-3)


def test_padding_leaves_no_trace() -> None:
    """Neither in the output nor in the statistics, whatever stands there; not even a NaN."""
    x, mask = batch(0, masked=True)
    assert mask is not None
    clean, dirty = BatchNorm(WIDTH).double(), BatchNorm(WIDTH).double()
    expected = clean(x, mask)
    x[~mask] = torch.nan
    assert torch.equal(dirty(x, mask)[mask], expected[mask])
    assert torch.equal(dirty.running_var, clean.running_var)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_a_batch_that_is_not_finite_leaves_the_statistics_alone(poison: float) -> None:
    """Its loss is not finite either, so training skips it or stops; nothing of it may stay."""
    norm = BatchNorm(WIDTH).double()
    x, _ = batch(0, masked=False)
    norm(x)
    before = norm.running_mean.clone(), norm.running_var.clone()
    x[1, 2] = poison
    assert not norm(x).isfinite().all()
    assert torch.equal(norm.running_mean, before[0])
    assert torch.equal(norm.running_var, before[1])


def test_bfloat16_keeps_float32_statistics() -> None:
    norm = BatchNorm(WIDTH)
    x = (100 + torch.randn(64, 64, WIDTH)).bfloat16()
    y = norm(x)
    assert (y.dtype, norm.running_mean.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(y.float().mean(dim=(0, 1)), torch.zeros(WIDTH), atol=1e-2, rtol=0)


def test_a_classifier_of_it_evaluates_each_text_alone() -> None:
    torch.manual_seed(0)
    config = TransNormerConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        causal=False,
        norm="batch",
        mixer_options={"norm": {"xnorm": "batch"}},
    )
    model = TransNormerForSequenceClassification(config)
    ids = torch.randint(20, (3, 9))
    mask = torch.arange(9) < torch.tensor([9, 4, 6])[:, None]
    loss = model(input_ids=ids, attention_mask=mask, labels=torch.tensor([0, 1, 0])).loss
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.eval()
    together = model(input_ids=ids, attention_mask=mask).logits
    alone = model(input_ids=ids[1:2, :4]).logits
    torch.testing.assert_close(together[1:2], alone, rtol=1e-5, atol=1e-5)
    assert model.model.final_norm.running_mean.abs().sum() > 0  # it saw the batch


def test_a_causal_model_may_not_see_later_tokens() -> None:
    for options in ({"norm": "batch"}, {"final_norm": "batch"}):
        with pytest.raises(ConfigError, match="see later tokens"):
            TransNormerConfig(hidden_size=8, num_attention_heads=2, **options)
    with pytest.raises(ConfigError, match="see later tokens"):
        build_mixer("norm", hidden_size=8, num_heads=2, causal=True, max_length=8, xnorm="batch")
