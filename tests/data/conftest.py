"""Real corpora for the tests that want them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def real_data() -> Callable[[str], Path]:
    """Finds a file or folder below $TRANSNORMER_DATA, or skips the test and says why."""

    def find(name: str) -> Path:
        root = os.environ.get("TRANSNORMER_DATA")
        if not root:
            pytest.skip("TRANSNORMER_DATA is not set: it names the folder that holds the real corpora")
        path = Path(root) / name
        if not path.exists():
            pytest.skip(f"{path} does not exist")
        return path

    return find
