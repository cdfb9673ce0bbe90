"""A wrong argument of an op is named, by the op that was called, and not what torch or numpy say of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import transnormer as tn
from transnormer.errors import ConfigError
from transnormer.ops import diag_attention, norm_attention, normed_attention, packed_bounds, rotated_attention
from transnormer.ops.shapes import check_block_size

Q = torch.randn(1, 10, 2, 4)
BOUNDS = torch.tensor([0, 4, 10])


def rotated(qkv: Any = (Q, Q, Q), kind: str = "norm", **options: Any) -> torch.Tensor:
    return rotated_attention(qkv, torch.arange(10), torch.rand(2), kind=kind, causal=True, **options).out


ATTENTIONS = {
    "norm_attention": partial(norm_attention, Q, Q, Q, causal=True),
    "normed_attention": partial(normed_attention, Q, Q, Q, causal=True),
    "diag_attention": partial(diag_attention, Q, Q, Q, causal=True),
    "rotated_attention": rotated,
}
EVERY = pytest.mark.parametrize(("name", "op"), ATTENTIONS.items(), ids=ATTENTIONS.keys())


@EVERY
@pytest.mark.parametrize("mask", [np.ones((1, 10)), [[1] * 10]])
def test_a_mask_that_is_no_tensor(name: str, op: Callable, mask: object):
    with pytest.raises(ConfigError, match=f"^{name}: mask must be a tensor, got (ndarray|list)") as caught:
        op(mask=mask)
    assert caught.value.hint == "torch.as_tensor(mask)"


@EVERY
def test_cu_seqlens_are_read_so_they_need_numbers(name: str, op: Callable):
    with pytest.raises(ConfigError, match=f"^{name}: .*cu_seqlens.* it is on the meta device"):
        op(cu_seqlens=BOUNDS.to("meta"))
    with pytest.raises(ConfigError, match=f"^{name}: cu_seqlens must end at T = 10, got"):
        op(cu_seqlens=BOUNDS + BOUNDS)


def test_a_row_without_numbers_is_not_cut():
    q = Q.to("meta")
    for op in (norm_attention, diag_attention):
        assert op(q, q, q, causal=True).shape == q.shape
        with pytest.raises(ConfigError, match="the row is on the meta device, which holds no numbers"):
            op(q, q, q, causal=True, cu_seqlens=BOUNDS)
    with pytest.raises(ConfigError, match="packed_bounds: x must be a tensor, got ndarray"):
        packed_bounds(BOUNDS, Q.numpy())


@pytest.mark.parametrize("name", ["norm_attention", "normed_attention", "rotated_attention"])
def test_a_state_is_a_tensor_of_one_shape(name: str):
    with pytest.raises(ConfigError, match=f"^{name}: state must be a tensor, got ndarray"):
        ATTENTIONS[name](state=np.zeros((1, 2, 4, 4)))
    with pytest.raises(ConfigError, match=rf"^{name}: state must be \[B, H, D, E\] = \[1, 2, 4, 4\]"):
        ATTENTIONS[name](state=torch.zeros(1, 2, 4, 5))


def test_normed_attention_names_itself():
    for k, words in ((Q[:, :5], "k must be of the shape of q"), (Q.double(), "q, k and v must have one dtype")):
        with pytest.raises(ConfigError, match=f"^normed_attention: {words}"):
            normed_attention(Q, k, Q, causal=True)
    with pytest.raises(ConfigError, match=r"^normed_attention: weight must be a tensor, got ndarray"):
        normed_attention(Q, Q, Q, causal=True, weight=np.ones(8))


@pytest.mark.parametrize("size", [2.5, "64", None, np.float64(8)])
def test_a_block_is_a_whole_number_of_tokens(size: object):
    with pytest.raises(ConfigError, match=r"^diag_attention: block_size must be a whole number, got"):
        ATTENTIONS["diag_attention"](block_size=size)
    with pytest.raises(ConfigError, match=r"^rotated_attention: block_size must be a whole number, got"):
        rotated(kind="softmax", block_size=size)
    with pytest.raises(ConfigError, match=r"^diag: block_size must be a whole number, got"):
        tn.DiagAttention(8, 2, causal=True, block_size=size)  # type: ignore[arg-type]


def test_numbers_of_numpy_and_of_a_compiler_are_whole_numbers():
    assert ATTENTIONS["diag_attention"](block_size=np.int64(4)).shape == Q.shape

    @partial(torch.compile, dynamic=True, fullgraph=True, backend="eager")
    def sized(x: torch.Tensor, size: int) -> torch.Tensor:
        check_block_size("op", size)
        check_block_size("op", x.shape[0])
        return x * size

    assert sized(torch.ones(3), 2).sum() == 6


def test_dropout_is_a_probability():
    with pytest.raises(ConfigError, match=r"^diag_attention: dropout_p must be a number, got 'x'"):
        ATTENTIONS["diag_attention"](dropout_p="x")
    with pytest.raises(ConfigError, match=r"^diag: dropout_p must be at least 0 and below 1, got 2"):
        tn.DiagAttention(8, 2, causal=True, dropout=2)


def test_a_name_that_is_no_text_is_unknown_like_any_other():
    for option in ("feature_map", "backend"):
        with pytest.raises(ConfigError, match=f"unknown {option} '3'"):
            ATTENTIONS["norm_attention"](**{option: 3})
    with pytest.raises(ConfigError, match="unknown kind '3'"):
        ATTENTIONS["diag_attention"](kind=3)


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (
            "rotated_attention: qkv must be a tensor",
            rotated,
        ),
        (
            "rotated_attention: v must be a tensor",
            lambda x: rotated((Q, Q, x)),
        ),
        (
            "rotated_attention: a tuple qkv has q, k and v, got 2",
            lambda x: rotated((Q, Q)),
        ),
        ("rotate: positions must be a tensor", lambda x: tn.ops.rotate(Q, Q, x, torch.rand(2))),
        (
            "rotate: reflection must be a tensor",
            lambda x: tn.ops.rotate(Q, Q, BOUNDS, torch.rand(2), reflection=x),
        ),
        ("rms_norm: x must be a tensor", tn.ops.rms_norm),
        ("glu: x must be a tensor", lambda x: tn.ops.glu(x, torch.ones(8, 4), torch.ones(8), torch.ones(4, 4))),
        ("linears: x must be a tensor", lambda x: tn.ops.linears(x, [torch.ones(8, 4)], [torch.ones(8)])),
        (
            "linear_cross_entropy: targets must be a tensor",
            lambda x: tn.ops.linear_cross_entropy(torch.ones(2, 4), torch.ones(3, 4), None, x),
        ),
        (
            "random_features: x must be a tensor",
            lambda x: tn.ops.random_features(x, torch.ones(6, 4), scale=0.5, epsilon=1e-4, scope="token"),
        ),
        (
            "norm_decode_step: memory must be a tensor",
            lambda x: tn.ops.norm_decode_step(Q[:, :1], Q[:, :1], Q[:, :1], x, positions=torch.zeros(1).long()),
        ),
        (
            "the model: attention_mask must be a tensor",
            lambda x: tn.TransNormerModel(tn.preset("t2-tiny"))(torch.zeros(1, 3).long(), attention_mask=x),
        ),
    ],
)
def test_arrays_of_numpy_are_told_from_tensors(words: str, call: Callable):
    with pytest.raises(ConfigError, match=f"^{words}"):
        call(np.ones((2, 3)))
