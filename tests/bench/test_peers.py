"""Peers of the GPU benchmark: that they compute our ops, and what is said about those that were not run."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from transnormer.bench import cases, peers
from transnormer.bench.attention_ops import attention_op, folded_op, packed_rows, unfolded
from transnormer.bench.cases import CASES, FULL_SOFTMAX, PACKED, PACKED_CASES, named_peers
from transnormer.bench.gpu_ops import OURS
from transnormer.bench.ops_summary import COLUMNS, legend, summarise, table
from transnormer.bench.peers import PEERS, able_peers, peer_versions
from transnormer.bench.shapes import SHAPES, floor_microseconds, goal_microseconds
from transnormer.cli.lists import choose_names
from transnormer.errors import ConfigError

BANDWIDTH = 4.28e12  # of an H200
LENGTH = 128


@pytest.fixture
def qkv() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, LENGTH, 3, 16, generator=generator, dtype=torch.float64) for _ in range(3)]


@pytest.fixture
def uncompiled(monkeypatch):
    """The compiler leaves functions as they are: it is their arithmetic that is checked here."""
    compiled = []

    def leave(function, **options):
        compiled.append(options)
        return function

    monkeypatch.setattr(torch, "compile", leave)
    return compiled


@pytest.fixture
def fake_fla(monkeypatch):
    """flash-linear-attention's interface on top of the definition."""
    calls = []

    def attend(q, k, v, scale=None, normalize=True):
        calls.append((scale, normalize))
        scores = torch.einsum("bthd,bshd->bhts", q, k).tril() * (q.shape[-1] ** -0.5 if scale is None else scale)
        if normalize:
            scores = scores / scores.sum(-1, keepdim=True)
        return torch.einsum("bhts,bshd->bthd", scores, v), None

    modules = {name: ModuleType(name) for name in ("fla", "fla.ops", "fla.ops.linear_attn")}
    modules["fla"].ops, modules["fla.ops"].linear_attn = modules["fla.ops"], modules["fla.ops.linear_attn"]
    modules["fla.ops.linear_attn"].chunk_linear_attn = attend
    modules["fla.ops.linear_attn"].fused_chunk_linear_attn = attend
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return calls


SERVED = {
    "norm causal": {"torch", "compile", "fla-chunk", "fla-fused"},
    "norm full": {"torch", "compile"},
    "diag softmax causal": {"torch", "compile", "sdpa", "sdpa-cudnn", "flex", "flex-tuned"},
    "diag softmax full": {"torch", "compile", "sdpa", "sdpa-cudnn", "flex", "flex-tuned"},
    "diag rela causal": {"torch", "compile"},
    "diag rela full": {"torch", "compile"},
    "full softmax causal": {"sdpa", "sdpa-cudnn", "flex"},
    **{case: set() for case in PACKED_CASES},
}


@pytest.mark.parametrize("case", PACKED_CASES)
def test_packed_rows_are_the_rows_of_a_batch(case, qkv):
    apart = case.removesuffix(PACKED)
    exact = attention_op(apart, "torch")(*qkv)
    torch.testing.assert_close(packed_rows(apart, "torch")(*qkv), exact, atol=1e-10, rtol=1e-10)
    floor = floor_microseconds("LM 64x512", BANDWIDTH)
    goals = [goal_microseconds(each, "LM 64x512", floor) for each in (apart, case)]
    assert goals[0]["forward"] == pytest.approx(0.9 * goals[1]["forward"])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_every_peer_computes_the_whole_op(case, qkv, uncompiled, fake_fla, monkeypatch):
    monkeypatch.setattr(peers, "sdpa_kernel", lambda backend: torch.no_grad())  # there is no cuDNN here
    exact = attention_op(case, "torch")(*qkv)
    served = set()
    for name, build in PEERS.items():
        op = build(case, LENGTH)
        if op is None:
            continue
        served.add(name)
        # FlexAttention knows no float64 on a CPU.
        inputs, tolerance = (qkv, 1e-9) if not name.startswith("flex") else ([x.float() for x in qkv], 1e-4)
        torch.testing.assert_close(op(*inputs).double(), exact, atol=tolerance, rtol=tolerance)
    assert served == SERVED[case]
    assert set(fake_fla) <= {(1.0, False)}
    assert all(options["fullgraph"] for options in uncompiled)


@pytest.mark.parametrize("case", CASES)
def test_a_folded_norm_is_the_norm(case, qkv):
    folded = folded_op(case, "torch")
    assert (folded is None) == ("softmax" in case or case in PACKED_CASES)
    if folded is not None:
        torch.testing.assert_close(unfolded(folded)(*qkv), attention_op(case, "torch")(*qkv))


def test_peers_that_are_not_there_are_left_out_or_refused(monkeypatch):
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    assert "fla-chunk" not in able_peers(None)
    assert "flex" in able_peers(None)
    assert peer_versions()["fla-fused"] == "flash-linear-attention is not installed"
    assert peer_versions()["sdpa"] == f"torch {torch.__version__}"
    with pytest.raises(ConfigError, match=r"--peers fla-chunk: .*not installed.*transnormer\[peers\]"):
        able_peers(["flex", "fla-chunk"])
    assert named_peers("none") == []
    assert named_peers("sdpa, flex") == ["sdpa", "flex"]
    assert able_peers(["sdpa", "flex"]) == ["sdpa", "flex"]
    assert tuple(PEERS) == cases.PEERS


def test_names_are_chosen_from_the_known():
    assert choose_names("--cases", None, CASES) == list(CASES)
    assert choose_names("--shapes", "LM 64x512, LRA 16x1024", SHAPES) == ["LM 64x512", "LRA 16x1024"]
    with pytest.raises(ConfigError, match=r"--shapes: unknown 'LM 64x513'.*did you mean 'LM 64x512'"):
        choose_names("--shapes", "LM 64x513", SHAPES)


# Ours against them


def test_floors_and_goals():
    floor = floor_microseconds("LM 16x2048", BANDWIDTH)
    assert floor == pytest.approx({"forward": 31.3, "forward_backward": 86.2}, abs=0.1)
    goals = {
        ("norm causal", "LM 64x512"): (1.2, 1.25),
        ("norm causal", "LM 4x8192"): (1.3, 1.4),
        ("norm causal", "LM 1x32768"): (1.5, 1.7),
        ("norm causal", "LLM 4x8192"): (1.2, 1.35),
        ("norm full", "LLM 4x8192"): (1.15, 1.3),
        ("diag softmax causal", "LM 16x2048"): (1.15, 1.2),
        ("diag rela full", "LM 16x2048"): (1.2, 1.25),
    }
    for (case, shape), multiples in goals.items():
        floor = floor_microseconds(shape, BANDWIDTH)
        goal = goal_microseconds(case, shape, floor)
        assert [goal[each] / floor[each] for each in floor] == pytest.approx(list(multiples))
    floor = floor_microseconds("LRA 16x4096", BANDWIDTH)
    goal = goal_microseconds("norm causal", "LRA 16x4096", floor)
    assert [goal[each] - floor[each] for each in floor] == pytest.approx([3, 8])
    assert goal_microseconds(FULL_SOFTMAX, "LM 16x2048", floor) is None


def row(by, forward, both):
    times = {"forward_us": forward, "forward_backward_us": both}
    return {"case": "norm causal", "shape": "LM 64x512", "by": by, **times}


def test_the_best_peer_of_each_pass_is_found_and_named():
    failed = {"case": "norm causal", "shape": "LM 64x512", "by": "flex", "failed": "no kernel"}
    rows = [
        row("triton", 40.0, 120.0),
        {key: value for key, value in row("triton-folded", 35.0, 100.0).items() if key != "forward_backward_us"},
        row("compile", 100.0, 400.0),
        failed,
        row("fla-chunk", 134.0, 329.0),
        {**row("sdpa", 1.0, 1.0), "shape": "LM 16x2048"},
    ]
    plain, folded = summarise(rows, BANDWIDTH)
    assert (plain["by"], folded["by"]) == OURS
    assert plain["forward"]["best_peer"] == "compile"
    assert plain["forward"]["x_best_peer"] == pytest.approx(0.4)
    assert plain["forward_backward"]["best_peer"] == "fla-chunk"
    assert folded["forward"]["x_best_peer"] == pytest.approx(0.35)
    assert "forward_backward" not in folded
    assert plain["forward"]["x_floor"] == pytest.approx(40 / 31.36, abs=0.01)
    assert plain["forward"]["goal_x_floor"] == pytest.approx(1.2)

    lines = table([plain, folded])
    assert all(len(line) == len(COLUMNS) for line in lines)
    assert lines[0][:6] == ["norm causal", "LM 64x512", "triton", "40.0", "1.28", "1.20"]
    assert lines[0][6:8] == ["compile 100.0", "0.40"]
    assert lines[0][-2:] == ["fla-chunk 329.0", "0.36"]
    assert lines[1][-5:] == ["–"] * 5


def test_the_peer_of_packed_sequences_is_the_same_op_on_them_apart():
    packed = {**row("triton", 44.0, 130.0), "case": "norm causal packed"}
    others = [row("triton-folded", 30.0, 90.0), {**row("triton", 1.0, 1.0), "shape": "LM 16x2048"}]
    entry = summarise([row("triton", 40.0, 120.0), *others, packed], BANDWIDTH)[-1]
    assert (entry["forward"]["best_peer"], entry["forward"]["x_best_peer"]) == ("apart", pytest.approx(1.1))
    assert "apart, as rows" in legend([entry])
    assert "apart" not in legend([{**entry, "case": "norm causal"}])


def test_without_a_peer_there_is_no_ratio():
    (entry,) = summarise([row("triton", 40.0, 120.0)], BANDWIDTH)
    assert entry["forward"]["best_peer"] is None
    assert table([entry])[0][6:8] == ["–", "–"]
