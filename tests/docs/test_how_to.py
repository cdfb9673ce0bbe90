"""The Python of docs/how-to.md runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to.md"


def test_the_attentions_in_a_model_of_ones_own():
    section = PAGE.read_text("utf-8").split("## use the attentions in a model of my own")[1].split("\n## ")[0]
    names: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    for block in blocks:
        exec(block, names)
    assert len(blocks) == 3
    assert names["y"].shape == names["x"].shape
    assert names["states"].shape == (3, 4, 16, 16)
    assert names["blocks"].shape == names["normed"].shape == names["v"].shape
