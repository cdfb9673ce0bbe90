"""The words of the demo's page: they say what the numbers are, also where the paper's are in another order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from transnormer.report.demo_page import compared_with_the_paper


def twin(method: str, *norms: float) -> Any:
    config = SimpleNamespace(optim=SimpleNamespace(warmup_steps=1))
    return SimpleNamespace(name=f"{method}-tiny", config=config, gradient_norms=(range(1, len(norms) + 1), norms))


@pytest.mark.parametrize(
    ("first", "whole", "later"),
    [
        (1.0, "linear_elu 0.57, llama 0.41, t2 0.00, the", "linear_elu 0.50, llama 0.20, t2 0.00, the"),
        (9.0, "llama 0.66, linear_elu 0.57, t2 0.00, not the", "linear_elu 0.50, llama 0.20, t2 0.00, the"),
    ],
)
def test_the_order_of_gradients_is_compared_with_the_papers(first: float, whole: str, later: str) -> None:
    twins = [twin("t2", 1, 1, 1), twin("llama", first, 2, 3), twin("linear_elu", 1, 1, 3)]
    said = compared_with_the_paper(twins)
    assert "Table 2: linear_elu 0.58, llama 0.25, t2 0.20." in said
    assert f"Here, of all logged steps: {whole} paper's order." in said
    assert f"Here, without the warm-up (to step 1): {later} paper's order." in said
