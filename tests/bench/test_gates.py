"""No number without its gate: a wrong op or model is refused before it is timed."""

from __future__ import annotations

import pytest
import torch

from transnormer.bench import ops, speed

CPU = torch.device("cpu")


def test_rows_of_the_ops_benchmark():
    rows = list(ops.measure_ops([64, 128]))
    assert {row["case"] for row in rows} == set(ops.CASES)
    assert all(row["seconds"] > 0 and row["backend"] == "torch" for row in rows)
    for row in rows:
        tensor = row["length"] * ops.HEADS * ops.HEAD_DIM * 4
        assert row["peak_bytes"] >= 4 * tensor, "the output and three gradients at the least"


def test_peak_memory_is_that_of_the_tensors_that_live_together(capfd):
    def step():
        first = torch.empty(1000)
        second = torch.empty(500)
        del first
        return second, torch.empty(700)

    assert ops._peak_bytes(step) == 4 * 1500
    assert ops._peak_bytes(step) == 4 * 1500
    assert capfd.readouterr() == ("", "")


def test_a_wrong_op_is_not_timed(monkeypatch):
    case = "norm_attention causal"
    right, reference, options = ops.CASES[case]
    wrong = lambda *inputs, **kwargs: 1.01 * right(*inputs, **kwargs)  # noqa: E731
    monkeypatch.setitem(ops.CASES, case, (wrong, reference, options))
    with pytest.raises(ops.GateFailed, match=r"norm_attention causal: relative error 1\.00e-02"):
        list(ops.measure_ops([64]))


def test_rows_of_the_speed_benchmark():
    rows = list(speed.measure_speed("tiny", ["t2", "vanilla"], [64], CPU))
    assert [row["method"] for row in rows] == ["t2", "vanilla"]
    assert all(row["train_steps_per_second"] > 0 and row["inference_steps_per_second"] > 0 for row in rows)
