"""What is not finite is found."""

from __future__ import annotations

import pytest
import torch

from transnormer.train.guards import all_finite


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_bad_entry_is_found(value: float) -> None:
    tensors = [torch.zeros(3, 4), torch.zeros(()), torch.zeros(5)]
    assert all_finite(tensors)
    assert all_finite([])
    tensors[2][4] = value
    assert not all_finite(tensors)
