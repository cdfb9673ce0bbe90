"""Processes that share sequences have together the loss and all gradients of one that has them alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from process_group import run_in_group
from torch import Tensor

from transnormer.errors import ConfigError
from transnormer.mixers.components.context import Context
from transnormer.mixers.contract import Mixer
from transnormer.mixers.registry import build_mixer, list_mixers, mixer_class
from transnormer.models.backbone import TransNormerModel
from transnormer.models.config import TransNormerConfig
from transnormer.models.heads import TransNormerForCausalLM
from transnormer.models.presets import preset

LENGTH, BLOCK = 64, 8
SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 40}


def small(method: str, **fields: Any) -> TransNormerConfig:
    """Layers of both attentions, in either order."""
    mixers = ["diag", "norm", "diag", "norm"]
    return preset(f"{method}-tiny", mixers=mixers, mixer_options={"diag": {"block_size": BLOCK}}, **SMALL, **fields)


def backbone(config: TransNormerConfig) -> TransNormerModel:
    torch.manual_seed(3)
    return TransNormerModel(config).double()


def loss_and_gradients(model: torch.nn.Module, loss: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def learn_piece(
    rank: int, size: int, config: TransNormerConfig, lengths: list[int] | None, recompute: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients of this rank's piece; of all there is where the size is 1."""
    model = backbone(config)
    if recompute:
        model.train()
        model.gradient_checkpointing_enable()
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(0, 50, (3, LENGTH), generator=generator)
    weights = torch.randn(3, LENGTH, 32, generator=generator, dtype=torch.float64)
    mask = None if lengths is None else torch.arange(LENGTH) < torch.tensor(lengths)[:, None]
    ids, weights = (x.chunk(size, dim=1)[rank] for x in (ids, weights))
    mask = None if mask is None else mask.chunk(size, dim=1)[rank]
    context = Context(rank, size, torch.distributed.group.WORLD) if size > 1 else None
    hidden = model(ids, attention_mask=mask, right_padded=True, context=context).last_hidden_state
    weights = weights if mask is None else weights * mask[..., None]
    return loss_and_gradients(model, (hidden.sin() * weights).sum())


def require_equal(whole: tuple[Tensor, dict[str, Tensor]], pieces: list[tuple[Tensor, dict[str, Tensor]]]) -> None:
    torch.testing.assert_close(sum(loss for loss, _ in pieces), whole[0], rtol=1e-10, atol=1e-10)
    assert len(whole[1]) > 20
    for name, gradient in whole[1].items():
        together = sum(gradients[name] for _, gradients in pieces)
        torch.testing.assert_close(together, gradient, rtol=1e-10, atol=1e-10, msg=lambda text, name=name: name + text)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    ("method", "fields", "lengths", "recompute"),
    [
        ("t2", {"causal": True}, None, False),
        ("t2", {"causal": True}, [64, 41, 3], False),  # pieces that are full, end in a block, and hold padding alone
        ("t2", {"causal": True, "position_embedding": "sinusoidal"}, None, True),
        ("t1", {"causal": False, "position_embedding": "learned"}, [64, 41, 3], False),
        ("t1", {"causal": True, "position": "none"}, None, False),
    ],
)
def test_loss_and_all_gradients_are_those_of_one_process(
    size: int, method: str, fields: dict[str, Any], lengths: list[int] | None, recompute: bool
) -> None:
    config = small(method, **fields)
    whole = learn_piece(0, 1, config, lengths, recompute)
    require_equal(whole, run_in_group(size, learn_piece, size, config, lengths, recompute))


def learn_packed(
    rank: int, size: int, config: TransNormerConfig, lengths: list[int]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients of this rank's piece of one row of packed sequences."""
    model = backbone(config).train()
    model.gradient_checkpointing_enable()
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(0, 50, (1, LENGTH), generator=generator)
    weights = torch.randn(1, LENGTH, 32, generator=generator, dtype=torch.float64)
    ids, weights = (x.chunk(size, dim=1)[rank] for x in (ids, weights))
    context = Context(rank, size, torch.distributed.group.WORLD) if size > 1 else None
    hidden = model(ids, cu_seqlens=torch.tensor([0, *lengths]).cumsum(0), context=context).last_hidden_state
    return loss_and_gradients(model, (hidden.sin() * weights).sum())


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("lengths", [[24, 40], [5, 11, 40, 1, 7]], ids=str)  # some over several pieces, some in one
@pytest.mark.parametrize("fields", [{"causal": True}, {"causal": False, "position_embedding": "sinusoidal"}], ids=str)
def test_packed_sequences_over_several_pieces(size: int, lengths: list[int], fields: dict[str, Any]) -> None:
    config = small("t2", **fields)
    require_equal(learn_packed(0, 1, config, lengths), run_in_group(size, learn_packed, size, config, lengths))


def learn_language(rank: int, size: int, config: TransNormerConfig) -> tuple[Tensor, dict[str, Tensor]]:
    torch.manual_seed(3)
    model = TransNormerForCausalLM(config).double()
    tokens = torch.randint(0, 50, (2, LENGTH + 1), generator=torch.Generator().manual_seed(5))
    inputs, targets = (x.chunk(size, dim=1)[rank] for x in (tokens[:, :-1], tokens[:, 1:]))
    context = Context(rank, size, torch.distributed.group.WORLD) if size > 1 else None
    logits = model(inputs, context=context).logits
    return loss_and_gradients(
        model, torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    )


def test_a_language_model_shares_its_tied_head() -> None:
    config = small("t2")
    require_equal(learn_language(0, 1, config), run_in_group(2, learn_language, 2, config))


def what_a_sum_is(rank: int, size: int, causal: bool) -> tuple[Tensor, Tensor]:
    """The sum that each rank gets of 2^rank, and the gradient of it times 10^rank."""
    x = torch.tensor([2.0**rank], requires_grad=True)
    y = Context(rank, size, torch.distributed.group.WORLD).sum_of_others(x, causal=causal)
    (y * 10.0**rank).backward()
    assert x.grad is not None
    return y.item(), x.grad.item()


@pytest.mark.parametrize(
    ("causal", "expected"),
    [
        (True, [(0, 1110), (1, 1100), (3, 1000), (7, 0)]),
        (False, [(14, 1110), (13, 1101), (11, 1011), (7, 111)]),
    ],
)
def test_a_sum_of_others_and_its_gradient(causal: bool, expected: list[tuple[int, int]]) -> None:
    assert run_in_group(4, what_a_sum_is, 4, causal) == expected


NOBODY: Any = Context(1, 2, group=None)  # type: ignore[arg-type]  # a group that an error comes before


@pytest.mark.parametrize("name", list_mixers())
def test_a_mixer_can_what_its_traits_say(name: str) -> None:
    traits = mixer_class(name).traits
    assert traits.context_parallel == (mixer_class(name).mix_piece is not Mixer.mix_piece)
    mixer = build_mixer(name, hidden_size=16, num_heads=2, causal=traits.causal, max_length=128)
    if not traits.context_parallel:
        with pytest.raises(ConfigError, match=f"{name}: several processes cannot share a sequence"):
            mixer(torch.randn(1, 64, 16), context=NOBODY)


def test_what_processes_that_share_sequences_cannot_do() -> None:
    model, ids = backbone(small("t2")), torch.zeros(1, 2 * BLOCK, dtype=torch.long)
    with pytest.raises(ConfigError, match="padding on the right"):
        model(ids, attention_mask=torch.ones_like(ids), context=NOBODY)
    with pytest.raises(ConfigError, match="neither decode states nor attention matrices"):
        model(ids, use_cache=True, context=NOBODY)
    with pytest.raises(ConfigError, match="12 tokens is not a whole number of blocks of 8"):
        model(ids[:, :12], context=NOBODY)
    with pytest.raises(ConfigError, match="piece 2 of 2 begins 13 tokens into a sequence, inside a block of 8"):
        model(ids, cu_seqlens=torch.tensor([0, 3, 4 * BLOCK]), context=NOBODY)
    with pytest.raises(ConfigError, match="cu_seqlens must end at T = 32"):  # they are those of the whole row
        model(ids, cu_seqlens=torch.tensor([0, 2 * BLOCK]), context=NOBODY)
    learned = backbone(small("t2", position_embedding="learned", max_position_embeddings=31))
    with pytest.raises(ConfigError, match="input of 32 tokens, but the learned positions end at 31"):
        learned(ids, context=NOBODY)


class OthersWithoutTokens(Context):
    """As one of two processes of which the other has zeros, so that what this one sends is all there is."""

    def sum_of_others(self, x: Tensor, *, causal: bool) -> Tensor:
        return torch.zeros_like(x) if x.isfinite().all() else x


@pytest.mark.parametrize("causal", [True, False])
def test_what_lies_in_padding_is_not_sent(causal):
    mixer = build_mixer("norm", hidden_size=16, num_heads=2, causal=causal, max_length=LENGTH)
    x, mask = torch.randn(1, LENGTH, 16), torch.arange(LENGTH)[None] < 40
    x[~mask] = torch.nan
    y = mixer(x, mask, context=OthersWithoutTokens(0, 2, group=None))
    assert y[mask].isfinite().all()
