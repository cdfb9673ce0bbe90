"""Few cases stand for many: that the kernels' cases on a GPU hold what they say they hold."""

from __future__ import annotations

from dataclasses import asdict
from itertools import product

import pytest
import torch
from covering import covering, interactions
from kernel_choices import DIAG_ON_A_GPU, DIAG_OPTIONS, NORM_ON_A_GPU, NORM_OPTIONS, SHARED, single

FACTORS = {"a": (1, 2, 3), "b": "xy", "c": (True, False), "d": (0, 1, 2, 3)}


def held(rows: list[dict], factors: dict, strength: int) -> set:
    return {each for each in interactions(factors, strength) if any(dict(each).items() <= row.items() for row in rows)}


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_every_interaction_is_held(strength):
    rows = covering(FACTORS, strength)
    assert held(rows, FACTORS, strength) == interactions(FACTORS, strength)
    assert len(rows) < len(list(product(*FACTORS.values())))


def test_what_belongs_together_is_combined():
    rows = covering(FACTORS, 1, together=("a", "d"))
    assert {(row["a"], row["d"]) for row in rows} == set(product((1, 2, 3), (0, 1, 2, 3)))
    assert len(rows) == 12


@pytest.mark.parametrize(
    ("cases", "options", "in_half", "in_single"),
    [
        (NORM_ON_A_GPU, NORM_OPTIONS, ("causal", "d", "many_segments", "short_segments"), ("causal", "d")),
        (DIAG_ON_A_GPU, DIAG_OPTIONS, ("kind", "d", "causal"), ("kind", "d")),
    ],
)
def test_what_is_checked_on_a_gpu(cases, options, in_half, in_single):
    rows = {
        dtype: [asdict(case) for case in cases if case.dtype == dtype and set(case.shapes) <= set(SHARED)]
        for dtype in (torch.bfloat16, torch.float32, torch.float16)
    }
    assert held(rows[torch.bfloat16], options, 2) == interactions(options, 2)
    assert held(rows[torch.float32], single(options), 1) == interactions(single(options), 1)
    for dtype, names in ((torch.bfloat16, in_half), (torch.float32, in_single), (torch.float16, in_half[:1])):
        taken = single(options) if dtype == torch.float32 else options
        some = {name: taken[name] for name in names}
        assert held(rows[dtype], some, len(some)) == interactions(some, len(some))


def test_shared_shapes_are_nothing_special_to_triton():
    for _, length, heads in SHARED:
        for number in (length, heads, -(-length // 64), -(-length // 128)):
            assert number != 1
            assert number % 16 != 0
