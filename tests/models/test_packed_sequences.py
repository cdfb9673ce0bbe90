"""Sequences packed in one row: mixers and models do with them what they do with each alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import DataCollatorWithFlattening

import transnormer as tn
from transnormer.errors import ConfigError
from transnormer.mixers.components.context import Context
from transnormer.mixers.components.packed_row import PackedPiece, packed_row
from transnormer.mixers.contract import Mixer
from transnormer.mixers.registry import build_mixer, list_mixers, mixer_class

LENGTHS = [70, 1, 64, 33]


def bounds(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def gradients(out: Tensor, module: torch.nn.Module, x: Tensor) -> list[Tensor]:
    """Of a fixed combination of the outputs: of x and of all parameters."""
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    leaves = [x, *(p for p in module.parameters() if p.requires_grad)]
    return [g for g in torch.autograd.grad((out * weights).sum(), leaves, allow_unused=True) if g is not None]


@pytest.mark.parametrize("name", list_mixers())
@torch.random.fork_rng()
def test_every_mixer_takes_packed_sequences_as_rows_of_a_batch(name: str) -> None:
    causal = mixer_class(name).traits.causal
    torch.manual_seed(0)
    mixer = build_mixer(name, hidden_size=16, num_heads=2, causal=causal, max_length=128).double().eval()
    x = torch.randn(1, sum(LENGTHS), 16, dtype=torch.float64, requires_grad=True)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    torch.manual_seed(1)  # of methods that draw
    padded = mixer(torch.nn.utils.rnn.pad_sequence(x[0].split(LENGTHS), batch_first=True), mask)[mask][None]
    torch.manual_seed(1)
    packed = mixer(x, cu_seqlens=bounds(LENGTHS))
    torch.testing.assert_close(packed, padded, rtol=1e-9, atol=1e-9)
    for ours, theirs in zip(gradients(packed, mixer, x), gradients(padded, mixer, x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


def test_the_papers_attentions_take_them_without_padding() -> None:
    for name in ("norm", "diag"):
        assert mixer_class(name).mix_packed is not Mixer.mix_packed


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40, "vocab_size": 50}


def language_model(preset: str, **fields: Any) -> Any:
    torch.manual_seed(3)
    config = tn.preset(preset, **SMALL, **fields)
    return (tn.TransNormerForCausalLM if config.causal else tn.TransNormerForMaskedLM)(config).double()


@pytest.mark.parametrize(
    ("preset", "fields"),
    [
        ("t1-tiny", {}),
        ("t2-tiny", {}),
        ("t2-tiny", {"causal": False, "position_embedding": "sinusoidal"}),
        ("t2-tiny", {"position_embedding": "learned", "max_position_embeddings": max(LENGTHS)}),
        ("vanilla-tiny", {}),
        ("llama-tiny", {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("recompute", [False, True])
def test_a_model_gives_each_sequence_what_it_gets_alone(preset: str, fields: dict[str, Any], recompute: bool) -> None:
    model = language_model(preset, **fields)
    if recompute:
        model.train()
        model.gradient_checkpointing_enable()
    ids = torch.randint(0, 50, (1, sum(LENGTHS)), generator=torch.Generator().manual_seed(1))
    packed = model(ids, cu_seqlens=bounds(LENGTHS)).logits
    apart = torch.cat([model(piece).logits for piece in ids.split(LENGTHS, dim=1)], dim=1)
    torch.testing.assert_close(packed, apart, rtol=1e-9, atol=1e-9)
    scale = torch.zeros((), requires_grad=True)  # stands in for an input: ids have no gradient
    for ours, theirs in zip(gradients(packed, model, scale), gradients(apart, model, scale), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


def test_a_batch_of_the_flattening_collator_trains_as_its_sequences_do() -> None:
    model = language_model("t2-tiny")
    examples = [{"input_ids": torch.randint(0, 50, (n,)).tolist()} for n in LENGTHS]
    batch = DataCollatorWithFlattening(return_flash_attn_kwargs=True)(examples, return_tensors="pt")
    rows = [torch.tensor([example["input_ids"]]) for example in examples]
    sums = [model(row, labels=row).loss * (row.shape[1] - 1) for row in rows if row.shape[1] > 1]
    mean = sum(sums) / sum(n - 1 for n in LENGTHS)
    torch.testing.assert_close(model(**batch).loss, mean)
    assert batch["max_length_q"] == max(LENGTHS)
    with pytest.raises(ConfigError, match="a sequence of 70 tokens, and the longest is said to have 69"):
        model(**{**batch, "max_length_q": 69})

    unmarked = DataCollatorWithFlattening()(examples, return_tensors="pt")
    with pytest.raises(ConfigError, match="begin anew within the row"):
        model(**unmarked)


def test_a_compiled_model_takes_other_bounds_without_a_new_graph() -> None:
    model = language_model("t2-tiny")
    compiled = torch.compile(model, backend="eager", dynamic=True)
    ids = torch.randint(0, 50, (1, 100))
    for lengths in ([40, 60], [99, 1]):
        with torch.no_grad():
            expected = model(ids, cu_seqlens=bounds(lengths)).logits
            torch.testing.assert_close(compiled(ids, cu_seqlens=bounds(lengths)).logits, expected)


def test_what_packed_sequences_cannot_have() -> None:
    model = language_model("t2-tiny")
    ids, cu_seqlens = torch.zeros(1, 10, dtype=torch.long), torch.tensor([0, 4, 10])
    with pytest.raises(ConfigError, match="the model: cu_seqlens must end at T = 10"):
        model(ids, cu_seqlens=torch.tensor([0, 4]))
    with pytest.raises(ConfigError, match="the model: with cu_seqlens all sequences are one row, but B is 2"):
        model(ids.expand(2, -1), cu_seqlens=cu_seqlens)
    with pytest.raises(ConfigError, match="cu_seqlens must be a tensor"):
        model(ids, cu_seqlens=[0, 4, 10])
    with pytest.raises(ConfigError, match="cu_seqlens and mask exclude each other"):
        model(ids, cu_seqlens=cu_seqlens, attention_mask=torch.ones_like(ids))
    for options in ({"use_cache": True}, {"output_attentions": True}):
        with pytest.raises(ConfigError, match="neither decode states nor attention matrices"):
            model(ids, cu_seqlens=cu_seqlens, **options)
    mixer = tn.NormAttention(hidden_size=16, num_heads=2, causal=True)
    with pytest.raises(ConfigError, match="packed sequences carry no state"):
        mixer(torch.zeros(1, 10, 16), state=mixer.init_state(2), cu_seqlens=cu_seqlens)
    classifier = tn.TransNormerForSequenceClassification(tn.preset("t2-tiny", causal=False, num_labels=2, **SMALL))
    with pytest.raises(ConfigError, match="a classifier takes one sequence a row"):
        classifier(ids, cu_seqlens=cu_seqlens)


@settings(max_examples=200, deadline=None)
@given(cuts=st.sets(st.integers(1, 23)), size=st.sampled_from([1, 2, 3, 4]))
def test_pieces_know_what_crosses_their_borders(cuts: set[int], size: int) -> None:
    cu_seqlens = torch.tensor([0, *sorted(cuts), 24])
    sequence = torch.repeat_interleave(torch.arange(len(cu_seqlens) - 1), cu_seqlens.diff())
    whole = packed_row("test", cu_seqlens, torch.empty(1, 24), None, None)
    length = 24 // size
    holds = [set(piece.tolist()) for piece in sequence.split(length)]
    for rank in range(size):
        context: Any = Context(rank, size, group=None)  # type: ignore[arg-type]  # nothing is sent
        row = packed_row("test", cu_seqlens, torch.empty(1, length), None, context)
        assert isinstance(row, PackedPiece)
        here = slice(rank * length, (rank + 1) * length)
        assert row.positions.tolist() == whole.positions[here].tolist()
        assert row.cu_seqlens.diff().tolist() == sequence[here].unique_consecutive(return_counts=True)[1].tolist()
        assert row.carried[rank] == whole.positions[here][0]
        first, last = sequence[here][0].item(), sequence[here][-1].item()
        assert set(row.before[rank]) == {other for other in range(rank) if first in holds[other]}
        assert set(row.behind[rank]) == {other for other in range(rank + 1, size) if last in holds[other]}
        assert (sequence[here][: row.first_end] == first).all()
        assert row.first_end == (sequence[here] == first).sum()
        assert row.last_start == length - (sequence[here] == last).sum()
